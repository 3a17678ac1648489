//! What the device VM says at its end: one word, on the last line of standard error.

use std::process::ExitStatus;

use control::DeviceStatus;
use qubes_rpc::name::TargetName;

use super::HandoverError;
use super::opener::Ended;
use crate::characters::is_harmless;

/// dom0's policy refused the call. A service that ends so looks the same.
const REFUSED: i32 = 126;
/// How much of a word that is not known is repeated, in characters.
const MAX_SAID: usize = 60;
/// Stands for a character that would move a cursor or hide.
const STAND_IN: char = '\u{fffd}';

/// Whether a call ended in order.
pub(super) fn check(status: ExitStatus, vm: &TargetName) -> Result<(), HandoverError> {
    match status.code() {
        Some(0) => Ok(()),
        Some(REFUSED) => Err(HandoverError::Refused { vm: vm.clone() }),
        // In words as the standard library has them: an exit code or a signal.
        _ => Err(HandoverError::Failed { vm: vm.clone(), how: status.to_string() }),
    }
}

/// The status that a call of the device VM ended with.
pub(crate) fn read_status(ended: &Ended, vm: &TargetName) -> Result<DeviceStatus, HandoverError> {
    check(ended.status, vm)?;
    let said = String::from_utf8_lossy(&ended.said);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let word = last.ok_or_else(|| HandoverError::NoStatus { vm: vm.clone() })?;
    DeviceStatus::parse(word).ok_or_else(|| HandoverError::UnknownStatus { vm: vm.clone(), said: harmless(word) })
}

fn harmless(word: &str) -> String {
    let safe = |character| if is_harmless(character) { character } else { STAND_IN };
    word.chars().take(MAX_SAID).map(safe).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn read(code: i32, said: &[u8]) -> Result<DeviceStatus, HandoverError> {
        let ended = Ended { status: ExitStatus::from_raw(code << 8), said: said.to_vec() };
        read_status(&ended, &"sd-devices".parse().unwrap())
    }

    #[test]
    fn the_last_line_is_the_status() {
        for status in DeviceStatus::all() {
            assert_eq!(read(0, format!("a warning\n{}\n", status.word()).as_bytes()).unwrap(), status);
        }
        assert_eq!(read(0, b"SUCCESS_EXPORT\r\n\n \n").unwrap(), DeviceStatus::Copied);
    }

    #[test]
    fn what_is_no_status_is_an_error_that_says_so() {
        assert!(matches!(read(0, b"\n  \n"), Err(HandoverError::NoStatus { .. })));
        assert!(matches!(read(126, b"SUCCESS_EXPORT\n"), Err(HandoverError::Refused { .. })));
        assert!(matches!(read(1, b"SUCCESS_EXPORT\n"), Err(HandoverError::Failed { .. })));
        assert!(matches!(read(0, b"SUCCESS_EXPORT extra"), Err(HandoverError::UnknownStatus { .. })));
        let hostile = format!("\u{1b}[2J\u{202e}{}", "x".repeat(5_000));
        let told = read(0, hostile.as_bytes()).unwrap_err().to_string();
        assert!(told.chars().all(is_harmless) && told.len() < 300, "{told}");
        assert!(read(0, b"\xff\xfe\n").unwrap_err().to_string().contains('\u{fffd}'));
    }
}
