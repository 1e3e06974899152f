//! How far this machine's clock is from a server's, by the `Date` of an answer.

use http::HeaderMap;
use http::header::DATE;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};

/// A `Date` names the second in which the answer was made.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// How far this machine's clock is ahead of the server's at least, by an answer to a request that was sent at this time and has just
/// arrived; negative where it is behind. `None` without a `Date`.
pub(super) fn skew_by(headers: &HeaderMap, sent: Timestamp) -> Option<SignedDuration> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let date = DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(skew(sent, Timestamp::now(), date))
}

/// The server has read its clock between the two moments. Whatever that leaves open is no distance.
fn skew(sent: Timestamp, received: Timestamp, date: Timestamp) -> SignedDuration {
    let ahead = sent.duration_since(date) - RESOLUTION;
    let behind = received.duration_since(date);
    if ahead.is_positive() {
        ahead
    } else if behind.is_negative() {
        behind
    } else {
        SignedDuration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_what_the_answer_proves_is_a_distance() {
        let at = |millis: i64| Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap();
        for (sent, received, millis) in [
            (0, 0, 0),
            (999, 1_500, 0),
            (-5_000, 5_000, 0),
            (1_000, 1_000, 0),
            (1_001, 2_000, 1),
            (600_000, 601_000, 599_000),
            (-3_000, -1, -1),
            (-601_000, -600_000, -600_000),
        ] {
            let expected = SignedDuration::from_millis(millis);
            assert_eq!(skew(at(sent), at(received), at(0)), expected, "{sent} to {received}");
        }
    }

    #[test]
    fn a_date_is_read_as_http_writes_it_and_anything_else_is_none() {
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(DATE, HeaderValue::from_static(text))]);
            skew_by(&headers, Timestamp::now())
        };
        let written = read("Tue, 14 Nov 2023 22:13:20 GMT").unwrap();
        assert!(written > SignedDuration::from_hours(24 * 365), "{written}");
        assert_eq!((read("soon"), read("")), (None, None));
        assert_eq!(skew_by(&HeaderMap::new(), Timestamp::now()), None);
    }
}
