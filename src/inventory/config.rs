//! The configuration of the inventory: `[inventory]`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use secrecy::SecretString;

use crate::config::fields::Fields;
use crate::config::setting::{PositiveDuration, Setting, Unfit, one_of};
use crate::config::{ClusterName, SectionName};

/// The name of the section.
const NAME: &str = "inventory";
/// The section `[inventory]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InventoryConfig {
    /// Name of the section, `inventory`.
    pub(crate) name: SectionName,
    /// The cluster whose releases are reported: a name under `[clusters]`. By default `[clusters.default]` if that is configured, else
    /// the cluster that the daemon runs in, else the one that kubectl would use.
    pub(crate) cluster: ClusterName,
    /// The API to which releases are posted.
    pub(crate) api_url: ApiUrl,
    /// The token for it: `token_file`, or of `towline inventory` a variable.
    pub(crate) token: TokenSource,
    /// In the bodies; empty, the default, is left out.
    pub(crate) email: String,
    /// In the bodies; empty, the default, is left out.
    pub(crate) org_id: String,
    /// In the registration; empty, the default, is left out.
    pub(crate) context_name: String,
    /// From a release's first change to its post, and the least time between two posts of one release; `10s` by default. A shorter one
    /// tells the steps of an upgrade one by one.
    pub(crate) delay: Duration,
    /// How long an operation of Helm takes at most; `10m` by default. A shorter one names deployments with a longer `--timeout` among the
    /// problems while they run; after a longer one, a Helm that was killed is noticed later.
    pub(crate) helm_timeout: Duration,
    /// How bodies are sent; a registration and a path for releases by default.
    pub(crate) wire: Wire,
    /// Where Helm stores releases; in Secrets by default.
    pub(crate) helm_driver: Storage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiUrl(Uri);

impl ApiUrl {
    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }

    /// Host and port.
    pub(crate) fn place(&self) -> &str {
        self.0.authority().map_or("", |authority| authority.as_str())
    }
}

impl Setting for ApiUrl {
    const ALLOWED: &'static str =
        "an https:// URL without user, query and fragment, or http:// to this machine (localhost, 127.0.0.1, [::1])";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        // `Uri` drops a fragment without a word.
        if text.contains(['#', '?', '@']) {
            return Err(Unfit::default());
        }
        let uri: Uri = text.parse().map_err(|_| Unfit::default())?;
        let host = uri.host().unwrap_or_default();
        let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
        let is_local = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        match uri.scheme_str() {
            Some("https") if !host.is_empty() => Ok(Self(uri)),
            Some("http") if is_local => Ok(Self(uri)),
            _ => Err(Unfit::default()),
        }
    }
}

/// Where the token comes from.
#[derive(Clone)]
pub(crate) enum TokenSource {
    /// A file, which is read again when it changes.
    File(PathBuf),
    /// A variable.
    Given(SecretString),
}

/// Files are equal by their paths, and tokens are not compared.
impl PartialEq for TokenSource {
    fn eq(&self, other: &Self) -> bool {
        matches!((self, other), (Self::File(one), Self::File(other)) if one == other)
    }
}

impl Eq for TokenSource {}

impl fmt::Debug for TokenSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(formatter, "{}", path.display()),
            Self::Given(_) => formatter.write_str("a variable"),
        }
    }
}

/// How bodies are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wire {
    /// A registration, then each release to a path of its own.
    #[default]
    Instances,
    /// Each release to the API's URL itself.
    Single,
}

/// Where Helm stores releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Storage {
    #[default]
    Secret,
    ConfigMap,
}

impl Setting for Wire {
    const ALLOWED: &'static str = "instances or single";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("instances", Self::Instances), ("single", Self::Single)])
    }
}

impl Setting for Storage {
    const ALLOWED: &'static str = "secret or configmap";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("secret", Self::Secret), ("configmap", Self::ConfigMap)])
    }
}

/// A text, which may be empty.
struct Text(String);

impl Setting for Text {
    const ALLOWED: &'static str = "a string";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        Ok(Self(text.to_owned()))
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl InventoryConfig {
    /// A section whose optional keys have their defaults.
    pub(crate) fn new(api_url: ApiUrl, token: TokenSource) -> Self {
        Self {
            name: SectionName::of_table(NAME),
            cluster: ClusterName::default(),
            api_url,
            token,
            email: String::new(),
            org_id: String::new(),
            context_name: String::new(),
            delay: Duration::from_secs(10),
            helm_timeout: Duration::from_mins(10),
            wire: Wire::default(),
            helm_driver: Storage::default(),
        }
    }

    /// Reads the section. None if a required key is missing or invalid.
    pub(crate) fn read(mut fields: Fields<'_>) -> Option<Self> {
        let has_cluster = fields.has("cluster");
        let cluster: Option<ClusterName> = fields.optional("cluster");
        let api_url = fields.required::<ApiUrl>("api_url");
        let token_file = fields.required::<PathBuf>("token_file");
        // Placeholders for invalid keys, so that the faults of the other keys are found as well.
        let nowhere = || ApiUrl(Uri::from_static("https://unnamed"));
        let is_complete = api_url.is_some() && token_file.is_some() && (cluster.is_some() || !has_cluster);
        let token = TokenSource::File(token_file.unwrap_or_default());
        let mut section = Self::new(api_url.unwrap_or_else(nowhere), token);
        section.cluster = cluster.unwrap_or_default();
        fields.set_as::<Text, _>("email", &mut section.email);
        fields.set_as::<Text, _>("org_id", &mut section.org_id);
        fields.set_as::<Text, _>("context_name", &mut section.context_name);
        fields.set_as::<PositiveDuration, _>("delay", &mut section.delay);
        fields.set_as::<PositiveDuration, _>("helm_timeout", &mut section.helm_timeout);
        fields.set("wire", &mut section.wire);
        fields.set("helm_driver", &mut section.helm_driver);
        fields.finish();
        is_complete.then_some(section)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::source::Node;

    fn read(keys: &[(&str, &str)]) -> Result<InventoryConfig, Vec<String>> {
        let table: BTreeMap<String, Node> =
            keys.iter().map(|(key, value)| ((*key).to_owned(), Node::Text((*value).to_owned()))).collect();
        let mut faults = Vec::new();
        let read = InventoryConfig::read(Fields::of("inventory", table, &mut faults));
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        read.filter(|_| told.is_empty()).ok_or(told)
    }

    const URL: (&str, &str) = ("api_url", "https://api.example/v1");
    const TOKEN: (&str, &str) = ("token_file", "/etc/towline/token");

    #[test]
    fn the_url_and_the_token_are_enough() {
        let config = read(&[URL, TOKEN]).expect("a section");
        let url = ApiUrl::from_text(URL.1).expect("a URL");
        assert_eq!(config, InventoryConfig::new(url, TokenSource::File(TOKEN.1.into())));
        assert_eq!(read(&[]).expect_err("two faults").len(), 2);
    }

    #[test]
    fn every_key_is_read() {
        let config = read(&[
            URL,
            TOKEN,
            ("cluster", "edge"),
            ("email", "a@b.example"),
            ("org_id", ""),
            ("context_name", "edge-west"),
            ("delay", "7s"),
            ("helm_timeout", "20m"),
            ("wire", "single"),
            ("helm_driver", "configmap"),
        ])
        .expect("a section");
        let url = ApiUrl::from_text(URL.1).expect("a URL");
        let expected = InventoryConfig {
            cluster: "edge".parse().expect("a name"),
            email: "a@b.example".to_owned(),
            context_name: "edge-west".to_owned(),
            delay: Duration::from_secs(7),
            helm_timeout: Duration::from_mins(20),
            wire: Wire::Single,
            helm_driver: Storage::ConfigMap,
            ..InventoryConfig::new(url, TokenSource::File(TOKEN.1.into()))
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn a_token_goes_over_https_or_stays_on_this_machine() {
        for url in ["https://api.example", "http://localhost:8080/x", "http://127.0.0.9", "http://[::1]:1/"] {
            assert!(read(&[("api_url", url), TOKEN]).is_ok(), "{url}");
        }
        for url in [
            "http://api.example",
            "http://127.0.0.1.example",
            "https://user:hunter2@api.example",
            "https://api.example?token=hunter2",
            "https://api.example/#a",
            "ftp://api.example",
            "https://",
            "api.example",
            "",
        ] {
            assert_eq!(read(&[("api_url", url), TOKEN]).expect_err(url).len(), 1, "{url}");
        }
    }

    #[test]
    fn a_given_token_is_not_shown() {
        let config = InventoryConfig::new(
            ApiUrl::from_text(URL.1).expect("a URL"),
            TokenSource::Given(SecretString::from("hunter2")),
        );
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
