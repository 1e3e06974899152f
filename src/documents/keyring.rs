//! The keys that seal fields.
//!
//! A sealed value is stored as byte 1, the length of the key's id, the id, a random nonce of 96 bits, and the ciphertext of AES-256 in
//! Galois/Counter Mode. Kind, id, namespace and name of the document are associated data, so that a value copied to another document, or
//! whose document was given another name, can't be opened. Without keys it is byte 0 and the plain value. Where there are keys, a plain
//! value is not opened: whoever may write to the database would otherwise choose where Secrets are sent.

use std::fmt;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use uuid::Uuid;

use super::document::Key;
use super::problem::{Problem, ProblemKind};
use crate::config::names::is_qualified_name;

/// First byte of a plain value.
const PLAIN: u8 = 0;
/// First byte of a sealed value.
const SEALED: u8 = 1;
/// Bytes of a nonce. It is random: with one key, 2³² values may be sealed (NIST SP 800-38D).
pub(super) const NONCE: usize = 12;

/// The keys of `keys_file`: the first seals, all open. Without that file, values are stored plainly: the default. `Debug` shows only
/// the ids of keys.
#[derive(Clone, Default)]
pub struct Keyring {
    keys: Vec<SealingKey>,
    /// There is a file that could never be read: nothing can be sealed or opened.
    is_unread: bool,
    /// Plain values are opened although there are keys.
    accepts_unsealed: bool,
}

#[derive(Clone)]
struct SealingKey {
    id: String,
    cipher: Aes256Gcm,
}

/// Why a text is no key file. The content of a line is never repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeys {
    #[error("there is no key; each line has an id, a space, and 32 bytes in base64")]
    Empty,
    #[error("line {line} is no key: {reason}")]
    Line {
        /// Its number, from 1.
        line: usize,
        reason: &'static str,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Its key is not in the key file.
    #[error("the key {key:?} is not in keys_file")]
    UnknownKey { key: String },
    /// It was changed, or it belongs to another document, or to another key of this id.
    #[error("the value does not fit the key {key:?}")]
    Mismatch { key: String },
    /// It was stored before there were keys, or by somebody who writes to the database and does not have them.
    #[error("the value is stored unencrypted, which accept_unsealed does not allow")]
    Unsealed,
    /// Whatever it is.
    #[error("keys_file could not be read yet")]
    Unread,
    /// It has none of the forms of sealed values.
    #[error("the value is in none of the known forms")]
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is longer than the cipher takes.
    #[error("the value can't be sealed")]
    TooLong,
    #[error("the value can't be sealed: keys_file could not be read yet")]
    Unread,
}

/// The key that a stored value was sealed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SealedWith<'v> {
    Nothing,
    /// The key with this id.
    Key(&'v str),
}

impl SealedWith<'_> {
    /// How all values begin that were stored so, and no others.
    pub fn head(&self) -> Vec<u8> {
        match self {
            Self::Nothing => vec![PLAIN],
            // The id of a key has at most 63 bytes.
            Self::Key(id) => [&[SEALED, u8::try_from(id.len()).unwrap_or(u8::MAX)], id.as_bytes()].concat(),
        }
    }
}

impl Keyring {
    /// What is in force until the file can be read for the first time.
    pub fn unread() -> Self {
        Self { is_unread: true, ..Self::default() }
    }

    /// The same keys, and whether plain values are opened as well: `accept_unsealed`.
    #[must_use]
    pub fn accepting_unsealed(self, accepts_unsealed: bool) -> Self {
        Self { accepts_unsealed, ..self }
    }

    /// Reads the content of a key file: lines `id base64-of-32-bytes`. Blank lines and those that begin with `#` are skipped.
    pub fn parse(text: &SecretString) -> Result<Self, InvalidKeys> {
        let mut keys: Vec<SealingKey> = Vec::new();
        for (index, line) in text.expose_secret().lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason| InvalidKeys::Line { line: index + 1, reason };
            let mut words = line.split_whitespace();
            let (Some(id), Some(key), None) = (words.next(), words.next(), words.next()) else {
                return Err(wrong("it has to be an id, a space, and 32 bytes in base64"));
            };
            if !is_qualified_name(id) {
                return Err(wrong("the id has to be 1 to 63 letters, digits, -, _ and ."));
            }
            if keys.iter().any(|earlier| earlier.id == id) {
                return Err(wrong("an earlier line has the same id"));
            }
            let bytes = STANDARD.decode(key).map(SecretSlice::from).map_err(|_| wrong("the key is not base64"))?;
            let cipher =
                Aes256Gcm::new_from_slice(bytes.expose_secret()).map_err(|_| wrong("the key has not 32 bytes"))?;
            keys.push(SealingKey { id: id.to_owned(), cipher });
        }
        if keys.is_empty() { Err(InvalidKeys::Empty) } else { Ok(Self { keys, ..Self::default() }) }
    }

    /// The id of the key that seals; none if values are stored plainly.
    pub fn sealing_key(&self) -> SealedWith<'_> {
        self.keys.first().map_or(SealedWith::Nothing, |key| SealedWith::Key(&key.id))
    }

    /// Whether it opens what was sealed so. Not for one that was never read.
    pub fn opens(&self, sealed_with: SealedWith<'_>) -> bool {
        match sealed_with {
            SealedWith::Nothing => self.accepts_unsealed || self.keys.is_empty(),
            SealedWith::Key(id) => self.keys.iter().any(|key| key.id == id),
        }
    }

    /// Seals a value of a document. A nonce is used once.
    pub fn seal(&self, document: &Key, id: Uuid, value: &[u8], nonce: [u8; NONCE]) -> Result<Vec<u8>, SealError> {
        if self.is_unread {
            return Err(SealError::Unread);
        }
        let Some(key) = self.keys.first() else {
            return Ok([&[PLAIN], value].concat());
        };
        let associated = associated_data(document, id);
        let payload = Payload { msg: value, aad: associated.as_bytes() };
        let ciphertext = key.cipher.encrypt(&Nonce::from(nonce), payload).map_err(|_| SealError::TooLong)?;
        Ok([SealedWith::Key(&key.id).head().as_slice(), &nonce, &ciphertext].concat())
    }

    pub fn open(&self, document: &Key, id: Uuid, stored: &[u8]) -> Result<SecretSlice<u8>, OpenError> {
        if self.is_unread {
            return Err(OpenError::Unread);
        }
        if let Some((&PLAIN, value)) = stored.split_first() {
            let is_accepted = self.opens(SealedWith::Nothing);
            return if is_accepted { Ok(SecretSlice::from(value.to_vec())) } else { Err(OpenError::Unsealed) };
        }
        let (key_id, rest) = key_and_rest(stored).ok_or(OpenError::Unknown)?;
        let Some(key) = self.keys.iter().find(|key| key.id == key_id) else {
            return Err(OpenError::UnknownKey { key: key_id.to_owned() });
        };
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE>().ok_or(OpenError::Unknown)?;
        let associated = associated_data(document, id);
        let payload = Payload { msg: ciphertext, aad: associated.as_bytes() };
        let opened = key.cipher.decrypt(&Nonce::from(*nonce), payload);
        opened.map(SecretSlice::from).map_err(|_| OpenError::Mismatch { key: key_id.to_owned() })
    }

    /// The key that a stored value was sealed with; none if it has none of the known forms.
    pub fn key_of(stored: &[u8]) -> Option<SealedWith<'_>> {
        if stored.first() == Some(&PLAIN) {
            return Some(SealedWith::Nothing);
        }
        key_and_rest(stored).map(|(key, _)| SealedWith::Key(key))
    }
}

fn key_and_rest(stored: &[u8]) -> Option<(&str, &[u8])> {
    let [SEALED, length, rest @ ..] = stored else {
        return None;
    };
    let (key, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(key).ok()?, rest))
}

/// No namespace and no name has a slash.
fn associated_data(document: &Key, id: Uuid) -> String {
    let Key { kind, namespace, name } = document;
    format!("{}/{id}/{namespace}/{name}", kind.plural())
}

impl fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

/// The operator has to bring the key back; the client can only try again.
impl From<OpenError> for Problem {
    fn from(error: OpenError) -> Self {
        Self::new(ProblemKind::Unavailable, format!("the sealed field can't be opened: {error}"))
    }
}

impl From<SealError> for Problem {
    fn from(error: SealError) -> Self {
        let kind = match error {
            SealError::TooLong => ProblemKind::TooLarge,
            SealError::Unread => ProblemKind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::kind::Kind;

    const ID: Uuid = Uuid::from_u128(7);

    fn cluster() -> Key {
        Key::new(Kind::Cluster, "team-a", "west-1")
    }

    fn line(id: &str, byte: u8) -> String {
        format!("{id} {}\n", STANDARD.encode([byte; 32]))
    }

    fn keyring(text: &str) -> Keyring {
        Keyring::parse(&SecretString::from(text)).expect("keys")
    }

    fn opened(keyring: &Keyring, stored: &[u8]) -> Result<Vec<u8>, OpenError> {
        keyring.open(&cluster(), ID, stored).map(|value| value.expose_secret().to_vec())
    }

    #[test]
    fn the_first_key_seals_and_every_key_opens() {
        let old = keyring(&line("k1", 1));
        let stored = old.seal(&cluster(), ID, b"canary", [9; NONCE]).expect("sealed");
        assert_eq!(stored[..4], [1, 2, b'k', b'1']);
        assert_eq!(stored[..4], old.sealing_key().head());
        assert_eq!(stored[4..16], [9; NONCE]);
        assert_eq!(stored.len(), 16 + b"canary".len() + 16);
        assert!(!stored.windows(6).any(|window| window == b"canary"));
        let both = keyring(&format!("# new\n\n{}{}", line("k2", 2), line("k1", 1)));
        assert_eq!(both.sealing_key(), SealedWith::Key("k2"));
        assert_eq!(opened(&both, &stored), Ok(b"canary".to_vec()));
        assert_eq!(Keyring::key_of(&stored), Some(SealedWith::Key("k1")));
        let new = keyring(&line("k2", 2));
        assert_eq!(opened(&new, &stored), Err(OpenError::UnknownKey { key: "k1".to_owned() }));
    }

    #[test]
    fn without_keys_the_value_is_plain_and_where_there_are_keys_it_is_opened_only_if_that_is_accepted() {
        let none = Keyring::default();
        let stored = none.seal(&cluster(), ID, b"value", [0; NONCE]).expect("stored");
        assert_eq!((stored.as_slice(), none.sealing_key().head()), (&b"\0value"[..], vec![0]));
        assert_eq!(Keyring::key_of(&stored), Some(SealedWith::Nothing));
        assert_eq!(opened(&none, &stored), Ok(b"value".to_vec()));
        let keys = keyring(&line("k1", 1));
        assert_eq!(opened(&keys, &stored), Err(OpenError::Unsealed));
        assert!(!keys.opens(SealedWith::Nothing) && none.opens(SealedWith::Nothing));
        let accepting = keys.accepting_unsealed(true);
        assert_eq!(opened(&accepting, &stored), Ok(b"value".to_vec()));
        assert!(accepting.opens(SealedWith::Nothing) && accepting.opens(SealedWith::Key("k1")));
    }

    #[test]
    fn before_the_key_file_was_read_nothing_is_sealed_and_above_all_not_stored_plainly() {
        let unread = Keyring::unread();
        assert_eq!(unread.seal(&cluster(), ID, b"value", [0; NONCE]), Err(SealError::Unread));
        assert_eq!(Problem::from(SealError::Unread).kind, ProblemKind::Unavailable);
        assert_eq!(opened(&unread, b"\0value"), Err(OpenError::Unread));
        let stored = keyring(&line("k1", 1)).seal(&cluster(), ID, b"value", [0; NONCE]).expect("sealed");
        assert_eq!(opened(&unread, &stored), Err(OpenError::Unread));
    }

    #[test]
    fn a_value_of_another_document_or_one_that_was_changed_is_not_opened() {
        let keys = keyring(&line("k1", 1));
        let stored = keys.seal(&cluster(), ID, b"value", [9; NONCE]).expect("sealed");
        let mismatch = OpenError::Mismatch { key: "k1".to_owned() };
        for (what, document, id) in [
            ("id", cluster(), Uuid::nil()),
            ("kind", Key { kind: Kind::Secret, ..cluster() }, ID),
            ("namespace", Key { namespace: "team-b".to_owned(), ..cluster() }, ID),
            ("name", Key { name: "west-2".to_owned(), ..cluster() }, ID),
        ] {
            assert_eq!(keys.open(&document, id, &stored).expect_err(what), mismatch, "another {what}");
        }
        assert_eq!(opened(&keyring(&line("k1", 2)), &stored), Err(mismatch.clone()), "another key");
        for at in 16..stored.len() {
            let mut changed = stored.clone();
            changed[at] ^= 1;
            assert_eq!(opened(&keys, &changed), Err(mismatch.clone()), "byte {at}");
        }
        for wrong in [&[] as &[u8], &[2], &[1], &[1, 9, b'k'], &[1, 2, b'k', b'1', 0]] {
            assert_eq!(opened(&keys, wrong), Err(OpenError::Unknown), "{wrong:?}");
        }
    }

    #[test]
    fn a_wrong_key_file_is_told_by_line_and_not_repeated() {
        let canary = "canarycanarycanary";
        for (text, line_number) in [
            (format!("k1 {canary}!"), 1),
            (format!("k1 {}", STANDARD.encode(canary)), 1),
            (format!("{}{canary}", line("k1", 1)), 2),
            (format!("\n{}k2 a {canary}", line("k1", 1)), 3),
            (format!("{}{}", line("k1", 1), line("k1", 2)), 2),
            (format!("{canary}/ {}", STANDARD.encode([1; 32])), 1),
        ] {
            let error = Keyring::parse(&SecretString::from(text.as_str())).expect_err("refused");
            assert!(matches!(error, InvalidKeys::Line { line, .. } if line == line_number), "{text}: {error:?}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
        assert_eq!(Keyring::parse(&SecretString::from("# none\n")).expect_err("empty"), InvalidKeys::Empty);
    }

    #[test]
    fn debug_shows_ids_alone() {
        assert_eq!(format!("{:?}", keyring(&line("k1", 1))), r#"["k1"]"#);
    }
}
