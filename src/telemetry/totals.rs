//! What has been counted until now, read from the text that Prometheus gets: there is no second set of counters.

use std::collections::{BTreeMap, BTreeSet};

use super::metrics::REST_CLIENT_REQUESTS_TOTAL;

/// Sums since the start of the process.
#[derive(Debug, Default, PartialEq)]
pub struct Totals {
    /// By the address of the API server: requests, and of these those that had no answer, 429 or 5xx.
    requests: BTreeMap<String, (f64, f64)>,
    /// By section: how many durations its histograms have, and their sum in seconds.
    lags: BTreeMap<String, (f64, f64)>,
}

impl Totals {
    /// `lags` are the histograms with the label `section` that are summed.
    pub fn read(metrics: &str, lags: &BTreeSet<&str>) -> Self {
        let mut totals = Self::default();
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, rest)) = line.split_once('{') else { continue };
            let Some((labels, value)) = rest.rsplit_once("} ") else { continue };
            let of = |name: &str| label(labels, name);
            let Ok(value) = value.parse::<f64>() else { continue };
            let histogram = |suffix| name.strip_suffix(suffix).is_some_and(|name| lags.contains(name));
            if name == REST_CLIENT_REQUESTS_TOTAL {
                let Some(host) = of("host") else { continue };
                let failed = of("code").is_some_and(|code| code == "429" || code.starts_with(['5', '<']));
                let sum = totals.requests.entry(host.to_owned()).or_default();
                sum.0 += value;
                sum.1 += if failed { value } else { 0.0 };
            } else if let (Some(section), true) = (of("section"), histogram("_count")) {
                totals.lags.entry(section.to_owned()).or_default().0 += value;
            } else if let (Some(section), true) = (of("section"), histogram("_sum")) {
                totals.lags.entry(section.to_owned()).or_default().1 += value;
            }
        }
        totals
    }

    /// The requests to the API server with this host and port, and those that failed, since an earlier reading.
    pub fn requests_since(&self, earlier: &Self, server: &str) -> (f64, f64) {
        // The default port is in no URL, and so not in the metric.
        let bare = [":443", ":80"].into_iter().find_map(|port| server.strip_suffix(port));
        let of = |totals: &Self| {
            let found = totals.requests.get(server).or_else(|| totals.requests.get(bare?));
            found.copied().unwrap_or_default()
        };
        difference(of(self), of(earlier))
    }

    /// The durations that a section has recorded since an earlier reading, and their sum.
    pub fn lags_since(&self, earlier: &Self, section: &str) -> (f64, f64) {
        let of = |totals: &Self| totals.lags.get(section).copied().unwrap_or_default();
        difference(of(self), of(earlier))
    }
}

fn difference(now: (f64, f64), before: (f64, f64)) -> (f64, f64) {
    ((now.0 - before.0).max(0.0), (now.1 - before.1).max(0.0))
}

/// The value of a label. Those that are asked for have neither commas nor quotes in them.
fn label<'t>(labels: &'t str, name: &str) -> Option<&'t str> {
    labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_lags_are_summed_by_server_and_by_section() {
        let text = "# TYPE rest_client_requests_total counter\n\
            rest_client_requests_total{code=\"200\",method=\"GET\",host=\"hub.example\"} 7\n\
            rest_client_requests_total{code=\"503\",method=\"GET\",host=\"hub.example\"} 2\n\
            rest_client_requests_total{code=\"<error>\",method=\"PATCH\",host=\"hub.example\"} 1\n\
            rest_client_requests_total{code=\"200\",method=\"GET\",host=\"10.0.0.7:6443\"} 5\n\
            lag_seconds_bucket{section=\"a\",le=\"1\"} 3\n\
            lag_seconds_sum{section=\"a\"} 1.5\nlag_seconds_count{section=\"a\"} 3\n\
            other_seconds_sum{section=\"a\"} 9\nother_seconds_count{section=\"a\"} 9\nup 1\n";
        let totals = Totals::read(text, &BTreeSet::from(["lag_seconds"]));
        let none = Totals::default();
        assert_eq!(totals.requests_since(&none, "hub.example:443"), (10.0, 3.0));
        assert_eq!(totals.requests_since(&none, "10.0.0.7:6443"), (5.0, 0.0));
        assert_eq!(totals.requests_since(&totals, "10.0.0.7:6443"), (0.0, 0.0));
        assert_eq!(totals.requests_since(&none, "elsewhere:6443"), (0.0, 0.0));
        assert_eq!((totals.lags_since(&none, "a"), totals.lags_since(&none, "b")), ((3.0, 1.5), (0.0, 0.0)));
    }
}
