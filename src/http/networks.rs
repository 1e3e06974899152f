//! Networks to which no connection is made, checked at every connection and after names are resolved.
//!
//! A name is resolved first, and only addresses outside of the networks are tried. A name can change its address at any time, so
//! a check of the URL alone would be worth nothing. An IPv6 address that leads to an IPv4 address (mapped, NAT64, 6to4) is
//! checked as both.
//!
//! Through a proxy, the proxy's own address is checked like a server's, and so is a server that is named by its address. What a
//! proxy makes of a server's *name* can't be known here: whoever allows proxies relies on the proxy's own rules for that.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::TryFutureExt;
use http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use ipnet::IpNet;
use tower::{BoxError, Service};

/// Loopback, link-local (where most clouds serve a machine's credentials), unspecified, which Linux connects to loopback, multicast, and
/// the other addresses of metadata services: of Alibaba, Azure, AWS, Google, Oracle and Scaleway.
pub const LOCAL_NETWORKS: [&str; 14] = [
    "127.0.0.0/8",
    "::1/128",
    "169.254.0.0/16",
    "fe80::/10",
    "0.0.0.0/8",
    "::/128",
    "224.0.0.0/4",
    "ff00::/8",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "fd00:ec2::/32",
    "fd20:ce::254/128",
    "fd00:c1::a9fe:a9fe/128",
    "fd00:42::42/128",
];

/// A network in CIDR notation, such as `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network(IpNet);

/// Why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotANetwork {
    /// It is an address without the length of a prefix.
    #[error("the prefix is missing")]
    Address(IpNet),
    /// Bits after the prefix are set.
    #[error("bits behind the prefix are set")]
    HostBits(IpNet),
    /// It is an IPv4 network in the notation of IPv6.
    #[error("an IPv4 network is written as IPv6, and its addresses are checked as IPv4")]
    Mapped,
    /// Anything else.
    #[error("there is no address with a prefix")]
    Malformed,
}

impl NotANetwork {
    /// The network that was probably meant.
    pub fn meant(&self) -> Option<IpNet> {
        match self {
            Self::Address(network) | Self::HostBits(network) => Some(*network),
            Self::Mapped | Self::Malformed => None,
        }
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let Ok(network) = text.parse::<IpNet>() else {
            return Err(match text.parse::<IpAddr>() {
                Ok(address) => NotANetwork::Address(address.into()),
                Err(_) => NotANetwork::Malformed,
            });
        };
        match network {
            IpNet::V6(network) if network.prefix_len() >= 96 && network.addr().to_ipv4_mapped().is_some() => {
                Err(NotANetwork::Mapped)
            }
            network if network.trunc() != network => Err(NotANetwork::HostBits(network.trunc())),
            network => Ok(Self(network)),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The networks to which no connection is made; none by default. Clones are cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedNetworks(Arc<[Network]>);

/// An address is in a network to which no connection is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The URL has this address.
    #[error("address {address} is in the denied network {network}")]
    Address { address: IpAddr, network: Network },
    /// All addresses of a name are in such networks. They are not repeated: they may be those of another's internal network.
    #[error("all addresses of {name} are in denied networks")]
    Name { name: String },
}

/// A name has no address that is known.
#[derive(Debug, thiserror::Error)]
#[error("the name {name} can't be resolved")]
pub struct Unresolved {
    name: String,
    source: std::io::Error,
}

impl Unresolved {
    pub(crate) fn of(name: impl Into<String>, source: std::io::Error) -> Self {
        Self { name: name.into(), source }
    }
}

impl FromIterator<Network> for DeniedNetworks {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

impl DeniedNetworks {
    /// These beside [`LOCAL_NETWORKS`].
    #[must_use]
    pub fn and_local(networks: &[Network]) -> Self {
        Self::local().0.iter().chain(networks).copied().collect()
    }

    #[expect(clippy::expect_used, reason = "constants, which a test parses")]
    pub fn local() -> Self {
        LOCAL_NETWORKS.into_iter().map(|text| text.parse::<Network>().expect("a network")).collect()
    }

    pub fn denying(&self, address: IpAddr) -> Option<Network> {
        let leads_to = leads_to(address);
        let denies = |network: &&Network| {
            network.0.contains(&address) || leads_to.is_some_and(|address| network.0.contains(&IpAddr::V4(address)))
        };
        self.0.iter().find(denies).copied()
    }

    /// Fails if a URL has a denied address in the place of a name.
    pub(super) fn check(&self, url: &Uri) -> Result<(), Denied> {
        let host = url.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let Ok(address) = host.parse() else { return Ok(()) };
        self.denying(address).map_or(Ok(()), |network| Err(Denied::Address { address, network }))
    }
}

/// The IPv4 address to which an IPv6 address leads: mapped, by NAT64's well-known prefix (RFC 6052), by 6to4 (RFC 3056).
fn leads_to(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    match address.octets() {
        [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] | [0x20, 0x02, a, b, c, d, ..] => {
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => Ipv6Addr::to_ipv4_mapped(&address),
    }
}

/// Resolves names like [`GaiResolver`], to addresses outside of the networks.
#[derive(Clone)]
pub struct Resolver {
    inner: GaiResolver,
    denied: DeniedNetworks,
}

impl Resolver {
    pub(super) fn new(denied: DeniedNetworks) -> Self {
        Self { inner: GaiResolver::new(), denied }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (denied, asked) = (self.denied.clone(), name.as_str().to_owned());
        let resolving = self.inner.call(name);
        Box::pin(async move {
            let found = resolving.await.map_err(|source| Unresolved::of(asked.as_str(), source))?;
            let found: Vec<SocketAddr> = found.collect();
            allowed(&denied, asked, found).map_err(BoxError::from)
        })
    }
}

/// The addresses of a name that may be connected to.
fn allowed(
    denied: &DeniedNetworks,
    name: String,
    mut found: Vec<SocketAddr>,
) -> Result<std::vec::IntoIter<SocketAddr>, Denied> {
    let count = found.len();
    found.retain(|address| denied.denying(address.ip()).is_none());
    // A name without any address fails as it always does.
    if found.is_empty() && count > 0 {
        return Err(Denied::Name { name });
    }
    Ok(found.into_iter())
}

/// Refuses URLs with denied addresses before a connector sees them.
#[derive(Clone)]
pub struct Checked<C> {
    inner: C,
    denied: DeniedNetworks,
}

impl<C> Checked<C> {
    pub(super) fn new(inner: C, denied: DeniedNetworks) -> Self {
        Self { inner, denied }
    }
}

impl<C> Service<Uri> for Checked<C>
where
    C: Service<Uri, Response: Send + 'static, Error: Into<BoxError> + 'static, Future: Send + 'static>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        match self.denied.check(&url) {
            Ok(()) => Box::pin(self.inner.call(url).map_err(Into::into)),
            Err(denied) => Box::pin(std::future::ready(Err(denied.into()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(networks: &[&str]) -> DeniedNetworks {
        networks.iter().map(|text| text.parse::<Network>().unwrap_or_else(|error| panic!("{text}: {error}"))).collect()
    }

    #[test]
    fn an_address_is_denied_in_whatever_way_it_is_written() {
        let local = DeniedNetworks::local();
        for (address, network) in [
            ("127.0.0.1", Some("127.0.0.0/8")),
            ("127.255.255.254", Some("127.0.0.0/8")),
            ("::1", Some("::1/128")),
            ("::ffff:127.0.0.1", Some("127.0.0.0/8")),
            ("64:ff9b::7f00:1", Some("127.0.0.0/8")),
            ("2002:7f00:1::", Some("127.0.0.0/8")),
            ("169.254.169.254", Some("169.254.0.0/16")),
            ("::ffff:169.254.169.254", Some("169.254.0.0/16")),
            ("64:ff9b::a9fe:a9fe", Some("169.254.0.0/16")),
            ("fe80::1", Some("fe80::/10")),
            ("febf::1", Some("fe80::/10")),
            ("fec0::1", None),
            ("0.0.0.0", Some("0.0.0.0/8")),
            ("::", Some("::/128")),
            ("::ffff:0.0.0.0", Some("0.0.0.0/8")),
            ("224.0.0.1", Some("224.0.0.0/4")),
            ("239.255.255.255", Some("224.0.0.0/4")),
            ("ff02::1", Some("ff00::/8")),
            ("10.0.0.1", None),
            ("::ffff:10.0.0.1", None),
            ("64:ff9b::a00:1", None),
            ("2001:db8::1", None),
        ] {
            let found = local.denying(address.parse().unwrap()).map(|network| network.to_string());
            assert_eq!(found.as_deref(), network, "{address}");
            assert_eq!(DeniedNetworks::default().denying(address.parse().unwrap()), None, "{address}, of none");
        }
    }

    #[test]
    fn a_text_that_is_no_network_is_told_with_the_one_that_is_meant() {
        for (text, told, meant) in [
            ("10.0.0.1/8", "bits behind the prefix are set", Some("10.0.0.0/8")),
            ("fd00::1/8", "bits behind the prefix are set", Some("fd00::/8")),
            ("10.0.0.1", "the prefix is missing", Some("10.0.0.1/32")),
            ("::1", "the prefix is missing", Some("::1/128")),
            ("::ffff:10.0.0.0/104", "an IPv4 network is written as IPv6, and its addresses are checked as IPv4", None),
            ("10.0.0.0/33", "there is no address with a prefix", None),
            ("internal", "there is no address with a prefix", None),
            ("", "there is no address with a prefix", None),
        ] {
            let wrong = text.parse::<Network>().unwrap_err();
            let found = wrong.meant().map(|network| network.to_string());
            assert_eq!((wrong.to_string().as_str(), found.as_deref()), (told, meant), "{text}");
        }
        assert_eq!("10.0.0.0/8".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn of_the_addresses_of_a_name_the_others_are_tried() {
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 0);
        let denied = denied(&["10.0.0.0/8"]);
        let found = allowed(&denied, "mixed".into(), vec![at("10.0.0.1"), at("192.0.2.1"), at("::ffff:10.0.0.2")]);
        assert_eq!(found.unwrap().collect::<Vec<_>>(), [at("192.0.2.1")]);
        let error = allowed(&denied, "inside.test".into(), vec![at("10.0.0.1"), at("::ffff:10.0.0.2")]).unwrap_err();
        assert_eq!(error.to_string(), "all addresses of inside.test are in denied networks");
        assert_eq!(allowed(&denied, "none".into(), Vec::new()).unwrap().count(), 0);
    }

    #[test]
    fn a_url_is_checked_as_far_as_it_has_an_address() {
        let local = DeniedNetworks::local();
        for (url, is_denied) in [
            ("https://127.0.0.1:6443/api", true),
            ("https://[::1]:6443", true),
            ("https://[::ffff:169.254.169.254]", true),
            ("https://192.0.2.1", false),
            ("https://localhost:6443", false),
        ] {
            assert_eq!(local.check(&url.parse().unwrap()).is_err(), is_denied, "{url}");
        }
    }
}
