use std::cell::Cell;

use flate2::{Compression, GzBuilder};
use proptest::prelude::*;

use super::*;

fn gzip(bytes: &[u8], header: GzBuilder) -> Vec<u8> {
    let mut writer = header.write(Vec::new(), Compression::best());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn unpack_within(packed: &[u8], limits: &Limits) -> (Result<Unpacked, UnpackError>, Vec<u8>) {
    let mut out = Vec::new();
    let result = gunzip(packed, &mut out, limits, &CancellationToken::new());
    (result, out)
}

fn unpack(packed: &[u8]) -> (Result<Unpacked, UnpackError>, Vec<u8>) {
    unpack_within(packed, &Limits::default())
}

/// Bytes that do not pack well.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 7_u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    })
    .take(length)
    .collect()
}

/// Gives one byte at a time, and is interrupted before each.
struct Drip<'a>(&'a [u8], bool);

impl Read for Drip<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let length = into.len().min(1);
        self.0.read(&mut into[..length])
    }
}

/// Fails with an error that could be the decoder's.
struct Failing(io::ErrorKind);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
}

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_content_and_the_name_come_out_whatever_else_the_header_holds() {
    let content = noise(300_000);
    let header = GzBuilder::new().filename("отчёт.pdf").extra(vec![9; 60_000]).comment(vec![b'c'; 60_000]);
    let (result, out) = unpack(&gzip(&content, header));
    assert_eq!(result.unwrap(), Unpacked { bytes: 300_000, name: Some("отчёт.pdf".into()) });
    assert_eq!(out, content);
    let (result, out) = unpack(&gzip(b"", GzBuilder::new()));
    assert_eq!((result.unwrap(), out), (Unpacked { bytes: 0, name: None }, vec![]));
}

#[test]
fn several_members_are_one_file_with_the_first_ones_name() {
    let mut packed = gzip(b"one, ", GzBuilder::new().filename("first"));
    packed.extend(gzip(b"", GzBuilder::new()));
    packed.extend(gzip(b"two", GzBuilder::new().filename("second")));
    let (result, out) = unpack(&packed);
    assert_eq!(result.unwrap(), Unpacked { bytes: 8, name: Some(b"first".to_vec()) });
    assert_eq!(out, b"one, two");
    // However the bytes arrive.
    let mut out = Vec::new();
    let result = gunzip(Drip(&packed, false), &mut out, &Limits::default(), &CancellationToken::new());
    assert_eq!(result.unwrap().name, Some(b"first".to_vec()));
    assert_eq!(out, b"one, two");
}

#[test]
fn f4_a_gzip_cut_at_any_byte_is_an_error() {
    let content = noise(3_000);
    let first = gzip(&content, GzBuilder::new().filename("report.odt").comment("a comment"));
    let two = [first.clone(), gzip(b"more", GzBuilder::new().extra(vec![1, 2, 3]))].concat();
    for length in 1..two.len() {
        let (result, out) = unpack(&two[..length]);
        if length == first.len() {
            assert_eq!(result.unwrap().bytes, 3_000);
        } else {
            assert!(matches!(result, Err(UnpackError::Cut)), "{length}: {result:?}");
            assert!([content.as_slice(), b"more"].concat().starts_with(&out));
        }
    }
    assert!(matches!(unpack(b"").0, Err(UnpackError::NotGzip)));
}

#[test]
fn f4_no_changed_bit_passes_for_the_content() {
    let content = noise(500);
    let packed = gzip(&content, GzBuilder::new());
    // The header of ten bytes has no checksum of its own here: time, flags of the compressor and system mean nothing.
    for at in 10..packed.len() {
        for bit in 0..8 {
            let mut damaged = packed.clone();
            damaged[at] ^= 1 << bit;
            match unpack(&damaged) {
                // Bits that only fill a byte up say nothing.
                (Ok(_), out) => {
                    assert_eq!(out, content, "{at}, {bit}");
                    assert_eq!(at, 10, "{bit}");
                }
                (Err(error), _) => assert!(matches!(error, UnpackError::Corrupt | UnpackError::Cut), "{at}, {bit}"),
            }
        }
    }
    let mut length = packed.clone();
    *length.last_mut().unwrap() ^= 1;
    assert!(matches!(unpack(&length).0, Err(UnpackError::Corrupt)));
}

#[test]
fn f4_what_follows_the_data_is_damage() {
    let packed = gzip(b"content", GzBuilder::new());
    for garbage in [&b"x"[..], b"\0", &[0; 512], b"PK\x03\x04", &[0x1f, 0x8b, 9, 0, 0, 0, 0, 0, 0, 0]] {
        let (result, _) = unpack(&[packed.as_slice(), garbage].concat());
        assert!(matches!(result, Err(UnpackError::Corrupt)), "{garbage:?}: {result:?}");
    }
}

#[test]
fn what_is_not_gzip_is_told_from_what_is_broken() {
    for other in [&b"plain text"[..], b"PK\x03\x04", b"\x1f\x8c\x08", b"\x1f\x8b\x07\0\0\0\0\0\0\0"] {
        assert!(matches!(unpack(other).0, Err(UnpackError::NotGzip)), "{other:?}");
        assert!(!is_gzip(other));
    }
    let packed = gzip(b"content", GzBuilder::new());
    assert!(is_gzip(&packed) && !is_gzip(&packed[..2]) && !is_zip(&packed));
    for zip in [b"PK\x03\x04rest", b"PK\x05\x06rest", b"PK\x07\x08rest"] {
        assert!(is_zip(zip) && !is_gzip(zip));
    }
    assert!(!is_zip(b"PK\x03") && !is_zip(b"PKZIP") && !is_zip(b""));
    // A flag that RFC 1952 reserves.
    assert!(matches!(unpack(&[0x1f, 0x8b, 8, 0x20, 0, 0, 0, 0, 0, 0]).0, Err(UnpackError::Corrupt)));
}

#[test]
fn f8_a_name_without_an_end_is_an_error_and_takes_no_memory() {
    let read = Cell::new(0_u64);
    struct Endless<'a>(&'a Cell<u64>);
    impl Read for Endless<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.set(self.0.get() + u64::try_from(into.len()).unwrap());
            assert!(self.0.get() < 1024 * 1024, "a name is read on and on");
            into.fill(b'n');
            Ok(into.len())
        }
    }
    for field in [8_u8, 16] {
        read.set(0);
        let header = [0x1f, 0x8b, 8, field, 0, 0, 0, 0, 0, 0];
        let result = gunzip(
            header.as_slice().chain(Endless(&read)),
            &mut Vec::new(),
            &Limits::default(),
            &CancellationToken::new(),
        );
        assert!(matches!(result, Err(UnpackError::Corrupt)), "{result:?}");
    }
    let longest = vec![b'n'; 65_535];
    let (result, _) = unpack(&gzip(b"x", GzBuilder::new().filename(longest.clone())));
    assert_eq!(result.unwrap().name, Some(longest));
}

#[test]
fn f5_nothing_comes_out_past_the_limits() {
    let packed = gzip(&noise(200_000), GzBuilder::new());
    let exact = Limits { bytes: 200_000, ratio: 200, layers: 2 };
    assert_eq!(unpack_within(&packed, &exact).0.unwrap().bytes, 200_000);
    let (result, out) = unpack_within(&packed, &Limits { bytes: 199_999, ratio: 200, layers: 2 });
    assert!(matches!(result, Err(UnpackError::TooLarge { bytes: 199_999, ratio: 200 })), "{result:?}");
    assert!(out.len() < 200_000);
}

#[test]
fn f5_the_ratio_counts_past_a_mebibyte() {
    let limits = Limits { bytes: u64::MAX, ratio: 200, layers: 2 };
    // About a thousand to one.
    let small = gzip(&vec![0; 1024 * 1024], GzBuilder::new());
    assert!(small.len() < 2_000);
    assert_eq!(unpack_within(&small, &limits).0.unwrap().bytes, 1024 * 1024);
    let bomb = gzip(&vec![0; 64 * 1024 * 1024], GzBuilder::new());
    let (result, out) = unpack_within(&bomb, &limits);
    assert!(matches!(result, Err(UnpackError::TooLarge { .. })), "{result:?}");
    assert!(out.len() <= 200 * bomb.len());
    // Members do not start the count again.
    let (result, out) = unpack_within(&small.repeat(40), &limits);
    assert!(matches!(result, Err(UnpackError::TooLarge { .. })), "{result:?}");
    assert!(out.len() <= 200 * 40 * small.len());
    assert_eq!(
        unpack_within(&bomb, &Limits { bytes: u64::MAX, ratio: 2_000, layers: 2 }).0.unwrap().bytes,
        64 * 1024 * 1024
    );
}

#[test]
fn a_stop_is_heard_before_the_next_block() {
    let stop = CancellationToken::new();
    struct Stopping<'a>(&'a CancellationToken, usize);
    impl Write for Stopping<'_> {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            self.0.cancel();
            self.1 += from.len();
            Ok(from.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut to = Stopping(&stop, 0);
    let result = gunzip(gzip(&noise(500_000), GzBuilder::new()).as_slice(), &mut to, &Limits::default(), &stop);
    assert!(matches!(result, Err(UnpackError::Stopped)), "{result:?}");
    assert!(to.1 <= BLOCK);
}

#[test]
fn failures_of_the_files_are_not_taken_for_damage() {
    let stop = CancellationToken::new();
    let packed = gzip(&noise(200_000), GzBuilder::new());
    for kind in [io::ErrorKind::InvalidInput, io::ErrorKind::UnexpectedEof, io::ErrorKind::PermissionDenied] {
        for length in [0, 2, 5, 1_000, packed.len()] {
            let from = packed[..length].chain(Failing(kind));
            let result = gunzip(from, &mut Vec::new(), &Limits::default(), &stop);
            assert!(matches!(&result, Err(UnpackError::Read(error)) if error.kind() == kind), "{length}: {result:?}");
        }
        let result = gunzip(packed.as_slice(), &mut Failing(kind), &Limits::default(), &stop);
        assert!(matches!(&result, Err(UnpackError::Write(error)) if error.kind() == kind), "{result:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_answer_within_the_limits(
        bytes in proptest::collection::vec(any::<u8>(), 0..2_000),
        flags in any::<u8>(),
        gzipped in any::<bool>(),
    ) {
        let packed = if gzipped { [&[0x1f, 0x8b, 8, flags][..], &bytes].concat() } else { bytes };
        let limits = Limits { bytes: 1_000, ratio: 200, layers: 2 };
        let (result, out) = unpack_within(&packed, &limits);
        prop_assert!(out.len() <= 1_000);
        if let Ok(unpacked) = result {
            prop_assert_eq!(unpacked.bytes, u64::try_from(out.len()).unwrap());
        }
    }

    #[test]
    fn a_changed_header_never_changes_what_comes_out(at in 0_usize..60, byte in any::<u8>(), insert in any::<bool>()) {
        let content = noise(2_000);
        let header = GzBuilder::new().filename("report.odt").extra(vec![7; 12]).comment("a comment");
        let mut packed = gzip(&content, header);
        if insert {
            packed.insert(at, byte);
        } else {
            packed[at] = byte;
        }
        let (result, out) = unpack(&packed);
        if result.is_ok() {
            prop_assert_eq!(out, content);
        } else {
            prop_assert!(out.len() <= 1024 * 1024 || out.len() <= packed.len() * 200);
        }
    }
}
