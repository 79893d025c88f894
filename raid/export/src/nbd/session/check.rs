//! What can be wrong with a request.

use super::{Command, Session};
use crate::nbd::proto::{Headers, MAX_PAYLOAD, NbdError, RequestHead, command, command_flag};

impl Session {
    /// Everything that can be wrong with one request, in the order in which it is told. The command, and whether it is to be durable.
    pub(super) fn check(&self, head: &RequestHead) -> Result<(Command, bool), NbdError> {
        let (command, allowed) = self.command(head.command)?;
        if head.flags & !(allowed | command_flag::FUA) != 0 {
            return Err(NbdError::Invalid);
        }
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        // FUA is allowed on every command and means something on those that change data.
        let fua = changes && head.flags & command_flag::FUA != 0;
        if command == Command::Flush {
            let ranged = head.offset != 0 || head.len != 0;
            return if ranged { Err(NbdError::Invalid) } else { Ok((command, fua)) };
        }
        if changes && self.export.read_only {
            return Err(NbdError::Perm);
        }
        self.check_range(command, head)?;
        Ok((command, fua))
    }

    /// The command of a code, and the flags that it may have besides FUA.
    fn command(&self, code: u16) -> Result<(Command, u16), NbdError> {
        let if_set = |flag: u16, set: bool| if set { flag } else { 0 };
        Ok(match code {
            command::READ => (Command::Read, if_set(command_flag::DF, self.headers != Headers::Simple)),
            command::WRITE => (Command::Write, if_set(command_flag::PAYLOAD_LEN, self.headers == Headers::Extended)),
            command::FLUSH => (Command::Flush, 0),
            command::TRIM => (Command::Trim, 0),
            command::CACHE => (Command::Cache, 0),
            command::WRITE_ZEROES => (Command::WriteZeroes, command_flag::NO_HOLE),
            command::BLOCK_STATUS if self.allocation => (Command::BlockStatus, command_flag::REQ_ONE),
            _ => return Err(NbdError::Invalid),
        })
    }

    fn check_range(&self, command: Command, head: &RequestHead) -> Result<(), NbdError> {
        let moves = matches!(command, Command::Read | Command::Write);
        if head.len == 0 || (moves && head.len > u64::from(MAX_PAYLOAD)) {
            return Err(NbdError::Invalid);
        }
        let within = head.offset.checked_add(head.len).is_some_and(|end| end <= self.export.size_bytes);
        if !within {
            let full = matches!(command, Command::Write | Command::WriteZeroes);
            return Err(if full { NbdError::NoSpace } else { NbdError::Invalid });
        }
        let block = u64::from(self.export.min_block);
        if !head.offset.is_multiple_of(block) || !head.len.is_multiple_of(block) {
            return Err(NbdError::Invalid);
        }
        Ok(())
    }
}
