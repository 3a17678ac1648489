//! Which part of a file a `Range` header asks for.
//!
//! On a development server the application answers: one range, and whatever is wrong with the header is 416. On a
//! production one the web server does: several ranges, and a header that it does not understand is as good as none.

use std::ops::Range;

use axum::http::{HeaderMap, header};

use super::WebServer;

/// The most ranges that a production web server looks at; asked for more, it sends everything.
const MOST_RANGES: usize = 200;

/// What is sent of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    /// All of it.
    Whole,
    /// One range of it.
    One(Span),
    /// Several ranges.
    Several(Vec<Span>),
    /// Nothing: 416.
    None,
}

/// A range that is there: the first and the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    pub(super) fn range(&self) -> Range<u64> {
        self.first..self.last.saturating_add(1)
    }
}

/// A range as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spec {
    From(u64),
    FromTo(u64, u64),
    Last(u64),
}

/// What a request asks for of a file of `length` bytes.
pub(super) fn select(asked: &HeaderMap, length: u64, server: WebServer) -> Selection {
    let Some(header) = asked.get(header::RANGE) else {
        return Selection::Whole;
    };
    if length == 0 && server == WebServer::Development {
        return Selection::Whole;
    }
    let specs = header.to_str().ok().and_then(parse);
    match (specs.as_deref(), server) {
        (None, WebServer::Production) => Selection::Whole,
        (Some(specs), WebServer::Production) if specs.len() > MOST_RANGES => Selection::Whole,
        (Some(specs), WebServer::Production) => {
            let spans: Vec<_> = specs.iter().filter_map(|spec| there(*spec, length)).collect();
            match spans.as_slice() {
                [] => Selection::None,
                [span] => Selection::One(*span),
                [..] => Selection::Several(spans),
            }
        }
        // The application counts from the end without looking whether there is so much.
        (Some([Spec::Last(bytes)]), WebServer::Development) if *bytes > length => Selection::None,
        (Some([spec]), WebServer::Development) => there(*spec, length).map_or(Selection::None, Selection::One),
        (None | Some(_), WebServer::Development) => Selection::None,
    }
}

/// `bytes=`, and at least one range.
fn parse(header: &str) -> Option<Vec<Spec>> {
    let specs = header.trim().strip_prefix("bytes=")?;
    specs.split(',').map(|spec| parse_one(spec.trim())).collect()
}

fn parse_one(spec: &str) -> Option<Spec> {
    let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<u64>().ok(),
        false => None,
    };
    match spec.split_once('-')? {
        ("", last) => Some(Spec::Last(number(last)?)),
        (first, "") => Some(Spec::From(number(first)?)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Spec::FromTo(first, last))
        }
    }
}

/// What is there of a range.
fn there(spec: Spec, length: u64) -> Option<Span> {
    let end = length.checked_sub(1)?;
    match spec {
        Spec::From(first) => (first <= end).then_some(Span { first, last: end }),
        Spec::FromTo(first, last) => (first <= end).then_some(Span { first, last: last.min(end) }),
        Spec::Last(bytes) => (bytes > 0).then_some(Span { first: length.saturating_sub(bytes), last: end }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(first: u64, last: u64) -> Selection {
        Selection::One(Span { first, last })
    }

    #[test]
    fn each_web_server_reads_ranges_its_own_way() {
        let two = Selection::Several(vec![Span { first: 0, last: 9 }, Span { first: 20, last: 29 }]);
        let cases = [
            ("bytes=0-99", one(0, 99), one(0, 99)),
            ("bytes=100-", one(100, 615), one(100, 615)),
            ("bytes=0-", one(0, 615), one(0, 615)),
            ("bytes=600-700", one(600, 615), one(600, 615)),
            ("bytes=615-615", one(615, 615), one(615, 615)),
            ("bytes=-50", one(566, 615), one(566, 615)),
            ("bytes=-616", one(0, 615), one(0, 615)),
            ("bytes=-617", Selection::None, one(0, 615)),
            ("bytes=-0", Selection::None, Selection::None),
            ("bytes=616-", Selection::None, Selection::None),
            ("bytes=999999-", Selection::None, Selection::None),
            ("bytes=0-9,20-29", Selection::None, two),
            ("bytes=0-9, 700-", Selection::None, one(0, 9)),
            ("bytes=9-0", Selection::None, Selection::Whole),
            ("bytes=", Selection::None, Selection::Whole),
            ("bytes=x-", Selection::None, Selection::Whole),
            ("bytes=+1-", Selection::None, Selection::Whole),
            ("bytes=18446744073709551616-", Selection::None, Selection::Whole),
            ("lines=0-9", Selection::None, Selection::Whole),
        ];
        for (header, development, production) in cases {
            let mut asked = HeaderMap::new();
            asked.insert(header::RANGE, header.parse().unwrap());
            assert_eq!(select(&asked, 616, WebServer::Development), development, "{header}");
            assert_eq!(select(&asked, 616, WebServer::Production), production, "{header}");
        }
        for server in [WebServer::Development, WebServer::Production] {
            assert_eq!(select(&HeaderMap::new(), 616, server), Selection::Whole);
        }
    }

    #[test]
    fn there_is_no_range_of_an_empty_file() {
        let mut asked = HeaderMap::new();
        asked.insert(header::RANGE, "bytes=0-".parse().unwrap());
        assert_eq!(select(&asked, 0, WebServer::Development), Selection::Whole);
        assert_eq!(select(&asked, 0, WebServer::Production), Selection::None);
        let many = format!("bytes={}0-0", "0-0,".repeat(MOST_RANGES));
        asked.insert(header::RANGE, many.parse().unwrap());
        assert_eq!(select(&asked, 9, WebServer::Production), Selection::Whole);
    }
}
