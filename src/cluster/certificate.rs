//! The validity of a client certificate.
//!
//! An API server answers an expired certificate like an unknown one: with 401, and without the cause. The certificate
//! itself shows the cause.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::AuthInfo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The period in which a client certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    not_before: SystemTime,
    not_after: SystemTime,
}

impl Validity {
    /// The validity of a kubeconfig user's certificate; `None` if there is none that can be parsed.
    pub(super) fn of(user: &AuthInfo) -> Option<Self> {
        Self::of_pem(&STANDARD.decode(user.client_certificate_data.as_ref()?).ok()?)
    }

    /// The validity of the first certificate, which is the user's own; those of authorities may follow.
    fn of_pem(pem: &[u8]) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let validity = certificate.validity();
        Some(Self { not_before: time(validity.not_before)?, not_after: time(validity.not_after)? })
    }

    /// Why the certificate is not valid at this time; `None` if it is.
    pub(super) fn fault(&self, now: SystemTime) -> Option<String> {
        if now > self.not_after {
            return Some(format!(
                "client certificate expired at {}",
                humantime::format_rfc3339_seconds(self.not_after)
            ));
        }
        let begins = humantime::format_rfc3339_seconds(self.not_before);
        (now < self.not_before).then(|| format!("client certificate is not valid before {begins}"))
    }
}

/// `None` if the time is out of the range that humantime can print: before 1970.
fn time(time: ASN1Time) -> Option<SystemTime> {
    let seconds = u64::try_from(time.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// Valid in 2020.
    fn pem() -> String {
        let key = KeyPair::generate().unwrap();
        let mut certificate = CertificateParams::new(Vec::new()).unwrap();
        (certificate.not_before, certificate.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        certificate.self_signed(&key).unwrap().pem()
    }

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn a_certificate_is_good_from_its_first_second_to_its_last() {
        let validity = Validity::of_pem(pem().as_bytes()).unwrap();
        for good in ["2020-01-01T00:00:00Z", "2020-06-01T00:00:00Z", "2021-01-01T00:00:00Z"] {
            assert_eq!(validity.fault(at(good)), None, "{good}");
        }
        let expired = validity.fault(at("2021-01-01T00:00:01Z"));
        assert_eq!(expired.as_deref(), Some("client certificate expired at 2021-01-01T00:00:00Z"));
        let early = validity.fault(at("2019-12-31T23:59:59Z"));
        assert_eq!(early.as_deref(), Some("client certificate is not valid before 2020-01-01T00:00:00Z"));
    }

    #[test]
    fn the_certificate_is_found_and_what_is_none_has_no_validity() {
        let user = |data: &str| AuthInfo { client_certificate_data: Some(data.to_owned()), ..AuthInfo::default() };
        assert_eq!(Validity::of(&AuthInfo::default()), None);
        assert_eq!(Validity::of(&user("not base64!")), None);
        assert_eq!(Validity::of(&user("AAAA")), None);
        assert_eq!(Validity::of(&user(&STANDARD.encode(pem()))), Validity::of_pem(pem().as_bytes()));
    }
}
