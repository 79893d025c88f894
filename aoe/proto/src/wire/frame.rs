//! A whole frame as one value, for those who take any frame as it comes: the initiator, tools, tests.
//!
//! The shelf parses in two steps instead, because it has to answer frames whose body is malformed.

use super::{AtaReply, AtaRequest, Command, ConfigInfo, Header, MaskList, ParseError, Reserve};

/// What follows the common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// An ATA request, and the bytes after its registers.
    AtaRequest(AtaRequest, &'a [u8]),
    /// An ATA reply, and the bytes after its registers.
    AtaReply(AtaReply, &'a [u8]),
    /// A config message.
    Config(ConfigInfo<'a>),
    /// A mask message.
    Mask(MaskList<'a>),
    /// A reserve message.
    Reserve(Reserve<'a>),
    /// A reply that reports an error; what follows its header has no meaning.
    Error,
    /// A command that we do not know, and the bytes after the header.
    Unknown(&'a [u8]),
}

/// A frame, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The common header.
    pub header: Header,
    /// What follows it.
    pub body: Body<'a>,
}

impl<'a> Frame<'a> {
    /// Decodes a frame of a version that we speak.
    pub fn parse(frame: &'a [u8]) -> Result<Frame<'a>, ParseError> {
        let (header, arg) = Header::parse(frame)?;
        header.check_version()?;
        if header.response && header.error.is_some() {
            return Ok(Frame { header, body: Body::Error });
        }
        let body = match header.command {
            Command::ATA if header.response => {
                let (reply, data) = AtaReply::parse(arg)?;
                Body::AtaReply(reply, data)
            }
            Command::ATA => {
                let (request, data) = AtaRequest::parse(arg)?;
                Body::AtaRequest(request, data)
            }
            Command::CONFIG => Body::Config(ConfigInfo::parse(arg)?),
            Command::MASK => Body::Mask(MaskList::parse(arg, header.response)?),
            Command::RESERVE => Body::Reserve(Reserve::parse(arg)?),
            _ => Body::Unknown(arg),
        };
        Ok(Frame { header, body })
    }
}
