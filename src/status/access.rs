//! Authorization of changes: requests with the token, and where none is configured those of programs of this machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use crate::http::foreign;

/// Longest token that is read; a longer file is not a token.
const LONGEST_TOKEN: u64 = 4096;

/// Of changes that are refused, one is logged in this time.
const LOGGED_EVERY: Duration = Duration::from_mins(1);

/// Why a change is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Denied {
    /// There is a token, and the request has none.
    #[error("changes need the admin token: --token-file FILE")]
    NeedsToken,
    #[error("without daemon.admin_token_file changes are only accepted from programs of the daemon's machine")]
    Remote,
    /// It comes from this machine, on behalf of another party.
    #[error(
        "without daemon.admin_token_file changes are only accepted from programs of the daemon's machine, and the request has {0}"
    )]
    Foreign(&'static str),
    /// The token differs from the one in the file, or no file is configured.
    #[error("wrong admin token")]
    WrongToken,
    /// The file can't be used. Its path is only logged.
    #[error("failed to read the admin token")]
    Unreadable(#[source] ReadToken),
}

#[derive(Debug, thiserror::Error)]
pub enum ReadToken {
    #[error("failed to read the token file {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is empty, or too long for a token.
    #[error("the token file {} contains no token", path.display())]
    NoToken { path: PathBuf },
}

/// Authorizes one request. Where there is a token, it is required from this machine, too: a side-car of a mesh takes requests from anywhere
/// and passes them on by loopback.
pub(super) async fn authorize(peer: SocketAddr, request: &Parts, token_file: Option<&Path>) -> Result<(), Denied> {
    let Some(given) = request.headers.get(AUTHORIZATION) else {
        return match foreign(request) {
            _ if token_file.is_some() => Err(Denied::NeedsToken),
            _ if !peer.ip().to_canonical().is_loopback() => Err(Denied::Remote),
            Some(what) => Err(Denied::Foreign(what)),
            None => Ok(()),
        };
    };
    let path = token_file.ok_or(Denied::WrongToken)?;
    let expected = read_token(path).await.map_err(Denied::Unreadable)?;
    let given = given.as_bytes().strip_prefix(b"Bearer ").ok_or(Denied::WrongToken)?;
    if bool::from(given.ct_eq(expected.expose_secret().as_bytes())) { Ok(()) } else { Err(Denied::WrongToken) }
}

/// Logs changes that were refused: the first one, and then one a minute, with the number of those before it.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Unlogged>);

#[derive(Debug, Default)]
struct Unlogged {
    /// When one was logged last.
    last: Option<Instant>,
    count: u64,
}

impl Denials {
    pub(super) fn note(&self, peer: SocketAddr, denied: &Denied) {
        // What can't be read is an error of its own.
        if matches!(denied, Denied::Unreadable(_)) {
            return;
        }
        if let Some(before) = self.0.lock().due(Instant::now()) {
            tracing::warn!(%peer, reason = %denied, before, "a change was refused");
        }
    }
}

impl Unlogged {
    /// How many before this one were not logged, if it is to be.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOGGED_EVERY) {
            self.count += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// Reads a token from its file, without surrounding white space.
pub(crate) async fn read_token(path: &Path) -> Result<SecretString, ReadToken> {
    let read = async {
        let mut text = String::new();
        let file = tokio::fs::File::open(path).await?;
        file.take(LONGEST_TOKEN + 1).read_to_string(&mut text).await?;
        Ok(text)
    };
    let text = read.await.map_err(|source| ReadToken::Read { path: path.to_owned(), source })?;
    let token = text.trim();
    let is_too_long = u64::try_from(text.len()).is_ok_and(|length| length > LONGEST_TOKEN);
    if token.is_empty() || is_too_long {
        return Err(ReadToken::NoToken { path: path.to_owned() });
    }
    Ok(SecretString::from(token))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use http::Request;
    use http::header::{HOST, HeaderName, ORIGIN};

    use super::*;

    const NEAR: &str = "127.0.0.1:9";
    const FAR: &str = "192.0.2.1:9";

    async fn decide(peer: &str, headers: &[(HeaderName, &str)], file: Option<&Path>) -> Result<(), Denied> {
        let mut request = Request::post("/approve/databases").header(HOST, "127.0.0.1:8384");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let (request, ()) = request.body(()).expect("a request").into_parts();
        authorize(peer.parse().expect("an address"), &request, file).await
    }

    fn token_file(content: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(content.as_bytes()).expect("a writable file");
        file
    }

    #[tokio::test]
    async fn loopback_needs_no_token_in_either_family() {
        for peer in [NEAR, "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(decide(peer, &[], None).await.is_ok(), "{peer}");
        }
        for peer in [FAR, "[2001:db8::1]:1", "[::ffff:192.0.2.1]:1"] {
            assert!(matches!(decide(peer, &[], None).await, Err(Denied::Remote)), "{peer}");
        }
    }

    #[tokio::test]
    async fn a_browser_or_a_side_car_on_loopback_speaks_for_someone_else() {
        for (header, value) in [
            (ORIGIN, "http://elsewhere.example"),
            (HeaderName::from_static("x-forwarded-proto"), "https"),
            (HOST, "towline.towline.svc:8384"),
        ] {
            let decision = decide(NEAR, &[(header, value)], None).await;
            assert!(matches!(decision, Err(Denied::Foreign(_))), "{value}: {decision:?}");
        }
    }

    #[tokio::test]
    async fn where_there_is_a_token_loopback_needs_it_too() {
        let file = token_file("sesame\n");
        for peer in [NEAR, FAR] {
            assert!(matches!(decide(peer, &[], Some(file.path())).await, Err(Denied::NeedsToken)), "{peer}");
        }
    }

    #[tokio::test]
    async fn the_right_token_is_taken_from_anywhere() {
        let file = token_file("sesame\n");
        let bearer = |token| [(AUTHORIZATION, token)];
        assert!(decide(FAR, &bearer("Bearer sesame"), Some(file.path())).await.is_ok());
        for wrong in ["Bearer sesam", "Bearer sesame ", "Basic sesame", "sesame", "Bearer "] {
            for peer in [NEAR, FAR] {
                let decision = decide(peer, &bearer(wrong), Some(file.path())).await;
                assert!(matches!(decision, Err(Denied::WrongToken)), "{wrong} from {peer}: {decision:?}");
            }
        }
        assert!(matches!(decide(FAR, &bearer("Bearer sesame"), None).await, Err(Denied::WrongToken)));
    }

    #[tokio::test(start_paused = true)]
    async fn of_refused_changes_one_a_minute_is_logged_with_the_number_of_the_others() {
        let mut unlogged = Unlogged::default();
        let begun = Instant::now();
        let mut due = |seconds| unlogged.due(begun + Duration::from_secs(seconds));
        assert_eq!([due(0), due(1), due(59), due(60), due(61)], [Some(0), None, None, Some(2), None]);
        assert_eq!(due(200), Some(1));
    }

    #[tokio::test]
    async fn a_token_that_is_rotated_counts_at_once() {
        let file = token_file("old");
        std::fs::write(file.path(), "new").expect("a writable file");
        assert!(decide(FAR, &[(AUTHORIZATION, "Bearer new")], Some(file.path())).await.is_ok());
        assert!(decide(FAR, &[(AUTHORIZATION, "Bearer old")], Some(file.path())).await.is_err());
    }

    #[tokio::test]
    async fn a_file_without_a_token_lets_nobody_in() {
        for content in [String::new(), " \n".to_owned(), "a".repeat(5000)] {
            let file = token_file(&content);
            let given = format!("Bearer {}", content.trim());
            let decision = decide(FAR, &[(AUTHORIZATION, &given)], Some(file.path())).await;
            assert!(matches!(decision, Err(Denied::Unreadable(ReadToken::NoToken { .. }))), "{decision:?}");
        }
        let gone = Path::new("does-not-exist");
        let decision = decide(FAR, &[(AUTHORIZATION, "Bearer x")], Some(gone)).await;
        assert!(matches!(decision, Err(Denied::Unreadable(ReadToken::Read { .. }))), "{decision:?}");
    }
}
