//! The directory where a shelf keeps what its devices must remember: config strings, mask lists, reservations.
//!
//! One small text file per device, `e<shelf>.<slot>.state`. Saved by the serving thread before the reply leaves: written beside,
//! synced, renamed, and the directory synced, so that at any time the file holds the old state or the new one.

use aoe_proto::shelf::{DeviceState, StateError};
use aoe_proto::wire::Address;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why a saved state could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It could not be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It makes no sense. Serving the device without its mask list and reservation would be wrong, so this is for a person to decide.
    #[error("{} is damaged; repair or remove it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: StateError,
    },
}

/// A directory of saved states.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// The directory `path`, made if it does not exist.
    pub fn new(path: &Path) -> io::Result<StateDir> {
        fs::create_dir_all(path)?;
        Ok(StateDir { path: path.to_owned() })
    }

    fn file(&self, device: Address) -> PathBuf {
        self.path.join(format!("{device}.state"))
    }

    /// The state saved for `device`; the empty one when there is none.
    pub fn load(&self, device: Address) -> Result<DeviceState, LoadError> {
        let path = self.file(device);
        match fs::read_to_string(&path) {
            Ok(text) => DeviceState::from_text(&text).map_err(|source| LoadError::Damaged { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DeviceState::default()),
            Err(source) => Err(LoadError::Read { path, source }),
        }
    }

    /// Replaces the state saved for `device`. Durable when it returns.
    pub fn save(&self, device: Address, state: &DeviceState) -> io::Result<()> {
        let beside = self.path.join(format!(".{device}.state.new"));
        let mut file = File::create(&beside)?;
        file.write_all(state.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, self.file(device))?;
        File::open(&self.path)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aoe_proto::wire::MacAddr;

    #[test]
    fn states_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let states = StateDir::new(&directory.path().join("a/b")).unwrap();
        let device = Address::new(7, 1);
        assert_eq!(states.load(device).unwrap(), DeviceState::default());
        let mut state = DeviceState { config: b"owner\0\xff".to_vec(), ..DeviceState::default() };
        states.save(device, &state).unwrap();
        assert_eq!(states.load(device).unwrap(), state);
        state.reserve.push(MacAddr([2, 0, 0, 0, 0, 9]));
        state.config.clear();
        states.save(device, &state).unwrap();
        assert_eq!(states.load(device).unwrap(), state);
        assert_eq!(states.load(Address::new(7, 2)).unwrap(), DeviceState::default());
    }

    #[test]
    fn damage_is_told_and_not_taken_for_an_empty_state() {
        let directory = tempfile::tempdir().unwrap();
        let states = StateDir::new(directory.path()).unwrap();
        let device = Address::new(7, 1);
        states.save(device, &DeviceState { config: vec![1], ..DeviceState::default() }).unwrap();
        let file = directory.path().join("e7.1.state");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, &text[..text.len() - 3]).unwrap();
        assert!(matches!(states.load(device), Err(LoadError::Damaged { .. })));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(states.load(device), Err(LoadError::Read { .. })));
        assert!(states.save(device, &DeviceState::default()).is_err());
    }
}
