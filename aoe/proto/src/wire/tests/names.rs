//! Addresses as text, wildcards, opcodes.

use crate::wire::*;

#[test]
fn mac_addresses() {
    let mac = MacAddr([0x02, 0x00, 0xAB, 0xCD, 0xEF, 0x01]);
    assert_eq!(mac.to_string(), "02:00:ab:cd:ef:01");
    for text in ["02:00:ab:cd:ef:01", "02-00-AB-CD-EF-01", "0200abcdef01"] {
        assert_eq!(text.parse(), Ok(mac), "{text}");
    }
    for text in [
        "",
        "02",
        "02:00:ab:cd:ef",
        "02:00:ab:cd:ef:01:",
        "02:00:ab:cd:ef:0g",
        "0200abcdef0",
        "02 00 ab cd ef 01",
        "2:0:ab:cd:ef:1",
        "+2:00:ab:cd:ef:01",
        "02:00:ab:cd:ef01:",
    ] {
        assert_eq!(text.parse::<MacAddr>(), Err(AddressParseError::Mac), "{text}");
    }
    assert!(MacAddr::BROADCAST.is_multicast() && MacAddr([1, 0, 0, 0, 0, 0]).is_multicast());
    assert!(!mac.is_multicast());
}

#[test]
fn device_addresses() {
    for (text, address) in
        [("e7.0", Address::new(7, 0)), ("e0.254", Address::new(0, 254)), ("e65534.3", Address::new(65534, 3))]
    {
        assert_eq!(text.parse(), Ok(address));
        assert_eq!(address.to_string(), text);
        assert!(!address.is_wildcard());
    }
    for text in [
        "", "e", "e7", "e7.", "e.0", "7.0", "e7.255", "e65535.0", "e65536.0", "e7.256", "e-1.0", "e+1.0", "e7.0p1",
        "E7.0",
    ] {
        assert_eq!(text.parse::<Address>(), Err(AddressParseError::Address), "{text}");
    }
}

#[test]
fn wildcards() {
    let device = Address::new(7, 3);
    let all = |shelf, slot| Address { shelf, slot };
    for (asked, covers) in [
        (Address::ALL, true),
        (all(Shelf::ALL, Slot(3)), true),
        (all(Shelf(7), Slot::ALL), true),
        (device, true),
        (all(Shelf::ALL, Slot(4)), false),
        (all(Shelf(8), Slot::ALL), false),
        (Address::new(7, 4), false),
        (Address::new(8, 3), false),
    ] {
        assert_eq!(asked.covers(device), covers, "{asked}");
        assert_eq!(asked.is_wildcard(), asked.shelf == Shelf::ALL || asked.slot == Slot::ALL);
    }
}

#[test]
fn opcodes() {
    let reads = [0x20, 0x24, 0x25, 0xC8];
    let writes = [0x30, 0x34, 0x35, 0xCA, 0x3D, 0xCE];
    let fua = [0x3D, 0xCE];
    let flushes = [0xE7, 0xEA];
    let extended = [0x06, 0x24, 0x25, 0x27, 0x34, 0x35, 0x3D, 0x42, 0xCE, 0xEA];
    let no_data = [0x27, 0x40, 0x42, 0xB0, 0xE0, 0xE1, 0xE2, 0xE3, 0xE5, 0xE6, 0xE7, 0xEA, 0xEF, 0xF8];
    for code in 0..=255u8 {
        let opcode = Opcode(code);
        assert_eq!(opcode.is_read(), reads.contains(&code), "{code:#x}");
        assert_eq!(opcode.is_write(), writes.contains(&code), "{code:#x}");
        assert_eq!(opcode.is_fua(), fua.contains(&code), "{code:#x}");
        assert_eq!(opcode.is_flush(), flushes.contains(&code), "{code:#x}");
        assert_eq!(opcode.is_extended(), extended.contains(&code), "{code:#x}");
        let direction = match code {
            0xEC => Some(Direction::In),
            0x06 => Some(Direction::Out),
            _ if reads.contains(&code) => Some(Direction::In),
            _ if writes.contains(&code) => Some(Direction::Out),
            _ if no_data.contains(&code) => Some(Direction::None),
            _ => None,
        };
        assert_eq!(opcode.direction(), direction, "{code:#x}");
        assert_eq!(opcode.name().is_some(), direction.is_some(), "{code:#x}");
    }
}

#[test]
fn status_and_error_bits() {
    for status in [0x00, 0x40, 0x50, 0x44, 0x42] {
        assert!(!Status(status).is_error(), "{status:#x}");
    }
    for status in [0x41, 0x80, 0x20, 0x08, 0xE7, 0xEA, 0x51] {
        assert!(Status(status).is_error(), "{status:#x}");
    }
    assert!(AtaError(0x44).contains(AtaError::UNC) && !AtaError(0x04).contains(AtaError::UNC));
}
