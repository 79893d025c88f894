//! What an export says about itself.

use super::*;

fn info() -> ExportInfo {
    ExportInfo {
        name: "a".into(),
        size_bytes: 1 << 20,
        read_only: false,
        min_block: 512,
        preferred_block: 65536,
        description: String::new(),
    }
}

#[test]
fn info_limits() {
    assert_eq!(info().check(), Ok(()));
    let long = "x".repeat(4097);
    let cases: &[(ExportInfo, Result<(), InfoError>)] = &[
        (ExportInfo { name: long.clone(), ..info() }, Err(InfoError::NameTooLong(4097))),
        (ExportInfo { description: long, ..info() }, Err(InfoError::DescriptionTooLong(4097))),
        (ExportInfo { min_block: 256, ..info() }, Err(InfoError::MinBlock(256))),
        (ExportInfo { min_block: 0, ..info() }, Err(InfoError::MinBlock(0))),
        (ExportInfo { min_block: 1536, ..info() }, Err(InfoError::MinBlock(1536))),
        (ExportInfo { min_block: 131_072, preferred_block: 131_072, ..info() }, Err(InfoError::MinBlock(131_072))),
        (ExportInfo { min_block: 4096, preferred_block: 512, ..info() }, Err(InfoError::PreferredBlock(512))),
        (ExportInfo { preferred_block: 196_608, ..info() }, Err(InfoError::PreferredBlock(196_608))),
        (ExportInfo { preferred_block: 1 << 26, ..info() }, Err(InfoError::PreferredBlock(1 << 26))),
        (ExportInfo { preferred_block: MAX_TRANSFER, ..info() }, Ok(())),
        (ExportInfo { size_bytes: 1000, ..info() }, Err(InfoError::Size(1000))),
        (ExportInfo { size_bytes: 1 << 63, ..info() }, Err(InfoError::Size(1 << 63))),
        (ExportInfo { size_bytes: 0, ..info() }, Ok(())),
        (ExportInfo { min_block: 4096, preferred_block: 4096, ..info() }, Ok(())),
    ];
    for (info, expected) in cases {
        assert_eq!(info.check(), *expected, "{info:?}");
    }
}
