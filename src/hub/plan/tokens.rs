//! Who may do what: the grants of `tokens_file`, looked up by the digest of a token. Pure.

use std::collections::HashMap;

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::config::names::is_label;
use crate::job::routes::Right;

/// What a grant allows, each role including those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read, list and watch.
    Read,
    /// Create, change, delete and apply.
    Write,
    /// Change the status, and read what concerns no document: refused requests and the like.
    Admin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    Name(String),
    /// All that begin with this text.
    Prefix(String),
    /// All, and what has no namespace.
    All,
}

/// Where something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionScope<'n> {
    /// In all namespaces, or on what has none.
    Everywhere,
    Namespace(&'n str),
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose grant it is, for the log.
    pub name: String,
    pub role: Role,
    pub namespaces: Namespaces,
}

/// The SHA-256 digest of a token.
pub type TokenDigest = [u8; 32];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(HashMap<TokenDigest, Vec<Grant>>);

/// The faulty lines of a file, each by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFaults(Vec<(usize, &'static str)>);

impl Namespaces {
    fn of(text: &str) -> Option<Self> {
        match text.strip_suffix('*') {
            Some("") => Some(Self::All),
            // A prefix of a label: it may end with a dash.
            Some(prefix) => is_label(&format!("{prefix}a")).then(|| Self::Prefix(prefix.to_owned())),
            None => is_label(text).then(|| Self::Name(text.to_owned())),
        }
    }

    fn include(&self, place: ActionScope<'_>) -> bool {
        match (self, place) {
            (Self::All, _) => true,
            (Self::Name(name), ActionScope::Namespace(namespace)) => name == namespace,
            (Self::Prefix(prefix), ActionScope::Namespace(namespace)) => namespace.starts_with(prefix.as_str()),
            (Self::Name(_) | Self::Prefix(_), ActionScope::Everywhere) => false,
        }
    }
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Its name in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// What routes of other jobs ask for.
impl From<Right> for Role {
    fn from(right: Right) -> Self {
        match right {
            Right::Read => Self::Read,
            Right::Write => Self::Write,
            Right::Admin => Self::Admin,
        }
    }
}

impl Grant {
    /// Whether it allows what needs this role at this place.
    pub fn allows(&self, role: Role, place: ActionScope<'_>) -> bool {
        self.role >= role && self.namespaces.include(place)
    }
}

impl Grants {
    /// Parses lines `name role namespaces sha256-of-token-in-hex`. Empty lines and those that begin with `#` are skipped.
    pub fn parse(text: &str) -> Result<Self, LineFaults> {
        let (mut grants, mut faults) = (Self::default(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                [name, role, namespaces, digest] => match grant(name, role, namespaces, digest) {
                    Ok((digest, grant)) => grants.0.entry(digest).or_default().push(grant),
                    Err(fault) => faults.push((number, fault)),
                },
                _ => faults.push((number, "it must have four words: name, role, namespaces and digest")),
            }
        }
        if faults.is_empty() { Ok(grants) } else { Err(LineFaults(faults)) }
    }

    /// Reads the content of the file. What it says of faults repeats no digest.
    ///
    /// An empty file is faulty: most probably, it is being written, or what writes it has failed. Who means to revoke all grants leaves
    /// a comment.
    pub fn read(text: &SecretString) -> Result<Self, String> {
        let text = text.expose_secret();
        if text.trim().is_empty() {
            return Err(
                "it is empty; a file that shall grant nothing has a comment, a line that begins with #".to_owned()
            );
        }
        Self::parse(text).map_err(|faults| faults.to_string())
    }

    pub fn of(&self, digest: &TokenDigest) -> Option<&[Grant]> {
        self.0.get(digest).map(Vec::as_slice)
    }

    pub fn tokens(&self) -> usize {
        self.0.len()
    }
}

fn grant(name: &str, role: &str, namespaces: &str, digest: &str) -> Result<(TokenDigest, Grant), &'static str> {
    let role = Role::of(role).ok_or("its role must be read, write or admin")?;
    let namespaces =
        Namespaces::of(namespaces).ok_or("its namespaces must be a name, a prefix with a star, or a star")?;
    let digest = digest_of_hex(digest).ok_or("its digest must be the SHA-256 of a token in 64 hexadecimal digits")?;
    Ok((digest, Grant { name: name.to_owned(), role, namespaces }))
}

fn digest_of_hex(text: &str) -> Option<TokenDigest> {
    let mut digest = TokenDigest::default();
    if text.len() != 2 * digest.len() || !text.bytes().all(|letter| letter.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(digest)
}

/// The digest by which a token is looked up.
pub fn digest_of(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

impl std::fmt::Display for LineFaults {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 3;
        let noun = if self.0.len() == 1 { "a faulty line" } else { "faulty lines" };
        formatter.write_str(noun)?;
        for (position, (number, fault)) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if position == 0 { ": " } else { "; " };
            write!(formatter, "{separator}line {number}: {fault}")?;
        }
        if self.0.len() > SHOWN { write!(formatter, "; and {} more", self.0.len() - SHOWN) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, role: &str, namespaces: &str, token: &str) -> String {
        use std::fmt::Write;
        let mut line = format!("{name} {role} {namespaces} ");
        for byte in digest_of(token.as_bytes()) {
            write!(line, "{byte:02x}").expect("a string");
        }
        line + "\n"
    }

    fn may(grants: &Grants, token: &str, role: Role, place: ActionScope<'_>) -> bool {
        let of = grants.of(&digest_of(token.as_bytes()));
        of.is_some_and(|grants| grants.iter().any(|grant| grant.allows(role, place)))
    }

    #[test]
    fn the_lines_of_a_token_add_up() {
        let text = format!(
            "# who may do what\n\n{}{}{}",
            line("ada", "write", "team-a*", "one"),
            line("ada", "read", "*", "one"),
            line("bob", "admin", "shop", "two")
        );
        let grants = Grants::parse(&text).expect("lines");
        assert_eq!(grants.tokens(), 2);
        let (a, ab) = (ActionScope::Namespace("team-a"), ActionScope::Namespace("team-ab"));
        assert!(may(&grants, "one", Role::Write, a) && may(&grants, "one", Role::Write, ab));
        assert!(may(&grants, "one", Role::Read, ActionScope::Namespace("shop")));
        assert!(!may(&grants, "one", Role::Write, ActionScope::Namespace("team")));
        assert!(!may(&grants, "one", Role::Admin, a));
        assert!(may(&grants, "one", Role::Read, ActionScope::Everywhere));
        assert!(!may(&grants, "one", Role::Write, ActionScope::Everywhere));
        assert!(may(&grants, "two", Role::Read, ActionScope::Namespace("shop")));
        assert!(!may(&grants, "two", Role::Read, ActionScope::Namespace("shop2")));
        assert!(!may(&grants, "two", Role::Read, ActionScope::Everywhere));
        assert_eq!(grants.of(&digest_of(b"three")), None);
    }

    #[test]
    fn an_empty_file_is_faulty_and_one_with_a_comment_grants_nothing() {
        for empty in ["", "\n", " \n\t\n"] {
            assert!(
                Grants::read(&SecretString::from(empty)).is_err_and(|fault| fault.starts_with("it is empty")),
                "{empty:?}"
            );
        }
        assert_eq!(Grants::read(&SecretString::from("# nobody any more\n")).map(|grants| grants.tokens()), Ok(0));
    }

    #[test]
    fn a_faulty_line_is_named_by_number_and_its_digest_is_not_repeated() {
        let good = line("ada", "read", "a", "t");
        let digest = good.split(' ').nth(3).expect("a digest").trim();
        let text = format!(
            "{good}ada owner a {digest}\nada read A_ {digest}\nada read a {}\nada read a {digest} more\nx *read a {digest}\n",
            &digest[1..]
        );
        let faults = Grants::parse(&text).expect_err("faults");
        let told = faults.to_string();
        for part in ["line 2: its role", "line 3: its namespaces", "line 4: its digest", "and 2 more"] {
            assert!(told.contains(part), "{told}");
        }
        assert!(!told.contains(&digest[1..9]), "{told}");
        for wrong in ["a**", "-*", "", "a*b"] {
            assert_eq!(Namespaces::of(wrong), None, "{wrong}");
        }
        assert_eq!(Namespaces::of("team-*"), Some(Namespaces::Prefix("team-".to_owned())));
    }
}
