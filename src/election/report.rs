//! A section with leader election, as the admin server sees it.

use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::Election;
use super::section_lease::SectionLease;
use crate::config::SectionName;
use crate::status::{Facts, Held, NotReady, ObjectPage, Purpose, Refused, Section, Selection};
use crate::telemetry;

/// Adds a section's election to the section's own report.
pub struct Elected {
    election: Arc<Election>,
    lease: Arc<SectionLease>,
    section: Arc<dyn Section>,
}

impl Elected {
    /// The section with its election; the section itself if there is none for it.
    pub fn around(election: &Arc<Election>, section: Arc<dyn Section>) -> Arc<dyn Section> {
        match election.section_lease(section.name()) {
            Some(lease) => Arc::new(Self { election: Arc::clone(election), lease: Arc::clone(lease), section }),
            None => section,
        }
    }

    fn holder(&self) -> Option<Arc<str>> {
        self.election.view.holder(self.lease.section.as_str())
    }

    /// Orders of operators only reach a section in the replica that runs it.
    fn check_held(&self) -> Result<(), Refused> {
        if self.lease.is_held() {
            return Ok(());
        }
        let reason = match self.holder().filter(|holder| *holder != self.election.identity) {
            Some(holder) => format!("section {} runs in replica {holder}", self.lease.section),
            None => format!("section {} runs in no replica now", self.lease.section),
        };
        Err(Refused::Unavailable { reason })
    }
}

impl Election {
    /// Sets the metric that says which sections run here, at the time of a scrape.
    pub fn refresh(&self) {
        for lease in &self.sections {
            telemetry::leader_election_master_status(&lease.section, lease.is_held());
        }
    }
}

impl Section for Elected {
    fn name(&self) -> &SectionName {
        self.section.name()
    }

    fn job(&self) -> &'static str {
        self.section.job()
    }

    /// A section that runs in another replica does not make this one unready, and is neither well nor unwell here.
    fn facts(&self) -> Facts {
        let facts = self.section.facts();
        if self.lease.is_held() {
            return facts;
        }
        // What this process has counted belongs to an earlier term.
        let mut elsewhere = Facts { flow: facts.flow, subject: facts.subject, ..Facts::default() };
        let holder = self.holder().filter(|holder| *holder != self.election.identity);
        let cluster = self.election.watch.cluster();
        let is_live = self.election.view.is_live();
        let not_ready = |reason: String| Some(NotReady { reason, unreachable: false });
        match (holder, self.lease.failure()) {
            (Some(holder), _) if is_live => elsewhere.purpose = Purpose::Elsewhere { holder: holder.to_string() },
            _ if !cluster.is_available() => {
                elsewhere.election = Some(format!("the election's cluster {} does not answer", cluster.name()));
            }
            (_, Some(failure)) => {
                elsewhere.not_ready = not_ready(format!("failed to acquire the section's Lease: {failure}"));
            }
            (_, None) if is_live => elsewhere.not_ready = not_ready("no replica runs the section now".to_owned()),
            (_, None) => {
                elsewhere.not_ready = not_ready("this replica does not see the election's Leases yet".to_owned());
            }
        }
        elsewhere
    }

    fn report(&self) -> Value {
        let mut report = self.section.report();
        let election = self.lease.report(Arc::clone(&self.election.identity), self.holder());
        if let Value::Object(report) = &mut report {
            // A struct of plain values always serializes.
            report.insert("election".into(), serde_json::to_value(election).unwrap_or(Value::Null));
        }
        report
    }

    /// What this process has of a section that runs in another replica belongs to an earlier term.
    fn objects(&self, selection: &Selection) -> ObjectPage {
        if self.lease.is_held() {
            return self.section.objects(selection);
        }
        ObjectPage::of_listed(self.facts().objects, selection)
    }

    fn lag(&self) -> Option<&'static str> {
        self.section.lag()
    }

    fn refresh(&self) {
        self.section.refresh();
    }

    fn count(&self) -> BoxFuture<'_, ()> {
        self.section.count()
    }

    fn approve(&self, from: IpAddr) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            self.check_held()?;
            self.section.approve(from).await
        })
    }

    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        Box::pin(async move {
            self.check_held()?;
            self.section.held().await
        })
    }

    fn detach(&self, local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            self.check_held()?;
            self.section.detach(local_gone).await
        })
    }

    fn attach(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            self.check_held()?;
            self.section.attach().await
        })
    }

    fn resync<'s>(&'s self, name: Option<&'s str>) -> BoxFuture<'s, Result<Value, Refused>> {
        Box::pin(async move {
            self.check_held()?;
            self.section.resync(name).await
        })
    }

    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        Box::pin(async move {
            self.check_held()?;
            self.section.explain(name).await
        })
    }
}
