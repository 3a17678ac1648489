//! Nothing secret stays in memory that was let go.
//!
//! The allocator of this test program looks through every block when it is freed, and moves a block whenever it grows, as
//! any allocator may. It has one test, since it cannot tell whose blocks they are.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::answer::Part;
use protocol::frame::{FrameDecoder, encode_frame};
use protocol::value::{
    Bounded, ItemId, OneTimeCode, OrderNumber, Passphrase, RequestId, Size, SourceId, Timestamp, Token, Username,
};
use protocol::{ApiLevel, Call, CallId, Deadline, FromProxy, Items, Request, SeenItems, SignedIn, ToProxy};

/// What every secret here holds. A code is made of digits, so they are.
const NEEDLE: &str = "774411";
const SOURCE: &str = "6f6d21bc-7f5e-4d0e-9a3c-0d9ab2a3c001";

/// Blocks that held it when they were freed.
static LEFT: AtomicUsize = AtomicUsize::new(0);

struct Searching;

#[global_allocator]
static ALLOCATOR: Searching = Searching;

#[expect(unsafe_code, reason = "an allocator is")]
// SAFETY: what allocates and frees is the system's allocator, with the layouts as they come.
unsafe impl GlobalAlloc for Searching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on. Zeroed, so that all of a block can be read when it is freed.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block has so many bytes, which were zeroed at first, and nobody else has it any more.
        let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
        if bytes.windows(NEEDLE.len()).any(|window| window == NEEDLE.as_bytes()) {
            LEFT.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }

    // `realloc` is the trait's own, which allocates, copies and frees.
}

fn left() -> usize {
    LEFT.swap(0, Ordering::SeqCst)
}

fn token() -> Token {
    // Long enough that a buffer which grows has to grow behind it once more.
    Token::try_new(format!("{NEEDLE}{}", "t".repeat(90))).unwrap()
}

fn source() -> SourceId {
    SOURCE.parse().unwrap()
}

fn calls() -> Vec<Call> {
    let items: Vec<_> = (0..40).map(|_| ItemId::Reply(SOURCE.parse().unwrap())).collect();
    vec![
        Call::Login {
            username: Username::try_new("mara").unwrap(),
            passphrase: Passphrase::try_new(format!("{NEEDLE} correct horse battery staple")).unwrap(),
            one_time_code: OneTimeCode::try_new(NEEDLE).unwrap(),
        },
        Call::Logout { token: token() },
        Call::GetUsers { token: token() },
        Call::GetSubmissions { token: token(), source: Some(source()) },
        Call::Star { token: token(), source: source() },
        Call::MarkSeen { token: token(), items: SeenItems::default() },
        Call::DeleteConversation {
            token: token(),
            source: source(),
            items: Bounded::try_new(items).unwrap(),
            upper_bound: OrderNumber::try_new(4).unwrap(),
        },
        Call::DownloadReply { token: token(), source: source(), reply: SOURCE.parse().unwrap(), from: Size::MAX },
    ]
}

#[test]
fn no_secret_is_left_behind_by_encoding_framing_or_decoding() {
    // The search finds what is left: in what is freed, and in what grows.
    drop(format!("{NEEDLE}!"));
    assert_eq!(left(), 1);
    let mut grows = NEEDLE.as_bytes().to_vec();
    grows.resize(1_000, 0);
    assert_eq!(left(), 1);
    std::mem::forget(grows);

    let deadline = Deadline::try_from(30_000).unwrap();
    let calls = calls();
    // What this test itself left behind when it made them.
    let _own = left();
    for (number, call) in (0..).zip(calls) {
        let name = call.name();
        let sent = ToProxy::Call(Request { id: CallId(number), request: RequestId::new([7; 16]), deadline, call });
        for piece in [1, 7, 64 * 1024] {
            let frame = encode_frame(&sent).unwrap();
            assert_eq!(left(), 0, "encoding {name}");
            let mut decoder = FrameDecoder::new();
            let mut arrived = None;
            for bytes in frame.chunks(piece) {
                decoder.feed(bytes);
                arrived = decoder.next_message::<ToProxy>().unwrap();
            }
            assert_eq!(arrived.as_ref(), Some(&sent));
            assert_eq!(left(), 0, "decoding {name} from pieces of {piece} bytes");
            drop((frame, decoder, arrived));
            assert_eq!(left(), 0, "letting {name} go");
        }
        drop(sent);
        assert_eq!(left(), 0, "letting {name} go");
    }

    let signed_in = SignedIn {
        token: token(),
        journalist: SOURCE.parse().unwrap(),
        first_name: None,
        last_name: None,
        expires: Timestamp::MAX,
        api_level: ApiLevel::V1,
    };
    let _own = left();
    drop(encode_frame(&FromProxy { id: CallId(1), part: Part::Items(Items::SignedIn(signed_in)) }).unwrap());
    assert_eq!(left(), 0, "the answer to a login");
}
