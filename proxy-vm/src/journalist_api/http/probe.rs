//! Asks whether the server is there.
//!
//! **Invariant:** neither a token nor anything else of a user is sent.

use jiff::fmt::rfc2822::DateTimeParser;
use protocol::value::Timestamp;
use protocol::{CallError, Items, Probe};
use reqwest::header::{DATE, HeaderMap};
use tokio::time::Instant;

use super::super::endpoint::Endpoint;
use super::super::{failure, wire};
use super::{HttpApi, milliseconds};
use crate::outlet::Outlet;

impl HttpApi {
    pub(super) async fn look(&self, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        let asked = Instant::now();
        let answer = self.send(Endpoint::Root, None, None, outlet).await?;
        let probe = Probe { server_date: date(answer.response.headers()), took_ms: milliseconds(asked) };
        let body = answer.capped(self.limits.small_bytes).read().await?;
        serde_json::from_slice::<wire::Root<'_>>(&body).map_err(|_| failure::not_the_api())?;
        outlet.begin().await?;
        outlet.items(Items::Probe(probe)).await
    }
}

/// What time the server says it is.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let date = DateTimeParser::new().parse_timestamp(headers.get(DATE)?.as_bytes()).ok()?;
    Timestamp::try_new(u64::try_from(date.as_microsecond()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_read_in_the_form_of_http_and_in_no_other() {
        let read = |text: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, reqwest::header::HeaderValue::from_bytes(text).unwrap());
            date(&headers).map(Timestamp::get)
        };
        assert_eq!(read(b"Thu, 24 Oct 2024 15:51:17 GMT"), Some(1_729_785_077_000_000));
        for other in
            [&b""[..], b"now", b"2024-10-24T15:51:17Z", b"Thu, 24 Oct 1924 15:51:17 GMT", b"\xff\xfe", &[b'9'; 9000]]
        {
            assert_eq!(read(other), None, "{other:?}");
        }
        assert_eq!(date(&HeaderMap::new()), None);
    }
}
