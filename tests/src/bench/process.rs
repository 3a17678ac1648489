//! What the kernel counts of a process.

use std::io;

/// Clock ticks a second in `/proc`; the same on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// What a process has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// Processor time, in milliseconds; the kernel counts in steps of 10.
    pub(super) cpu_ms: u64,
    /// The most memory that was resident at once, in KiB.
    pub(super) peak_kib: u64,
    /// Bytes written by system calls, into pipes and sockets included.
    pub(super) bytes_written: u64,
}

/// Reads a process's figures.
pub(super) fn usage(pid: u32) -> io::Result<Usage> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let stat = read("stat")?;
    // The program's name, in parentheses, may hold anything; utime and stime are the 12th and 13th field behind it.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
    Ok(Usage {
        cpu_ms: ticks.saturating_mul(1000) / TICKS_PER_SECOND,
        peak_kib: labelled(&read("status")?, "VmHWM:"),
        bytes_written: labelled(&read("io")?, "wchar:"),
    })
}

/// What a process was started with: its program's name, and what follows it.
pub(super) fn arguments(pid: u32) -> io::Result<Vec<String>> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline"))?;
    let words = words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    Ok(words.filter(|word| !word.is_empty()).collect())
}

fn labelled(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(label))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn this_process_has_figures() {
        let before = usage(std::process::id()).unwrap();
        let (mut from, mut to) = std::io::pipe().unwrap();
        to.write_all(&[0; 4_000]).unwrap();
        from.read_exact(&mut [0; 4_000]).unwrap();
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.peak_kib > 1_000 && usage.bytes_written >= before.bytes_written + 4_000, "{usage:?}");
        let arguments = arguments(std::process::id()).unwrap();
        assert_eq!(arguments.first(), std::env::args().next().as_ref());
    }
}
