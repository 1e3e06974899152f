//! A section that is elected, as the admin server sees it.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::Election;
use super::seat::Seat;
use crate::config::SectionName;
use crate::telemetry::{self, Condition, Held, Overview, Readiness, Refused, Section, SectionState};

/// A section with its part in the election around its own report.
pub struct Elected {
    election: Arc<Election>,
    seat: Arc<Seat>,
    section: Arc<dyn Section>,
}

impl Elected {
    /// The section with its election; the section itself where it is not elected.
    pub fn around(election: &Arc<Election>, section: Arc<dyn Section>) -> Arc<dyn Section> {
        match election.seat(section.name()) {
            Some(seat) => Arc::new(Self { election: Arc::clone(election), seat: Arc::clone(seat), section }),
            None => section,
        }
    }

    fn holder(&self) -> Option<Arc<str>> {
        self.election.roll.holder(self.seat.section.as_str())
    }

    /// Only where the section runs can anything be done about it.
    fn check_held(&self) -> Result<(), Refused> {
        if self.seat.is_held() {
            return Ok(());
        }
        let reason = match self.holder().filter(|holder| *holder != self.election.identity) {
            Some(holder) => format!("section {} runs in replica {holder}", self.seat.section),
            None => format!("section {} runs in no replica now", self.seat.section),
        };
        Err(Refused::Unavailable { reason })
    }
}

impl Election {
    /// Says which sections run here, at the time of a scrape.
    pub fn refresh(&self) {
        for seat in &self.seats {
            telemetry::leader_election_master_status(&seat.section, seat.is_held());
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

    /// One that runs in another replica is that one's business.
    fn readiness(&self) -> Readiness {
        if self.seat.is_held() {
            return self.section.readiness();
        }
        let elsewhere = self.holder().is_some_and(|holder| holder != self.election.identity);
        if elsewhere && self.election.roll.takes_part() {
            return Readiness::Ready;
        }
        let cluster = self.election.watch.cluster();
        match self.seat.failure() {
            _ if !cluster.is_available() => {
                Readiness::Unreachable(format!("the election's cluster {} does not answer", cluster.name()))
            }
            Some(failure) => Readiness::NotReady(format!("the section could not be taken: {failure}")),
            None if self.election.roll.takes_part() => Readiness::NotReady("no replica runs the section now".into()),
            None => Readiness::NotReady("this replica has not joined the election yet".into()),
        }
    }

    /// One that runs in another replica does neither well nor badly here.
    fn condition(&self) -> Condition {
        if self.seat.is_held() {
            return self.section.condition();
        }
        match self.readiness() {
            Readiness::Ready => {
                let holder = self.holder().map(|holder| format!("runs in replica {holder}")).unwrap_or_default();
                Condition::new(SectionState::Elsewhere, holder)
            }
            Readiness::Unreachable(reason) => Condition::new(SectionState::Blocked, reason),
            Readiness::Held(reason) => Condition::new(SectionState::Held, reason),
            Readiness::NotReady(reason) => Condition::new(SectionState::NotReady, reason),
        }
    }

    fn overview(&self) -> Overview {
        let overview = self.section.overview();
        if self.seat.is_held() {
            return overview;
        }
        // What was counted here before is of another term.
        Overview { total: 0, in_step: 0, oldest_seconds: None, ..overview }
    }

    fn report(&self) -> Value {
        let mut report = self.section.report();
        let part = self.seat.report(Arc::clone(&self.election.identity), self.holder(), self.election.roll.replicas());
        if let Value::Object(report) = &mut report {
            // A struct of plain values always serializes.
            report.insert("election".into(), serde_json::to_value(part).unwrap_or(Value::Null));
        }
        report
    }

    fn refresh(&self) {
        self.section.refresh();
    }

    fn approve(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            self.check_held()?;
            self.section.approve().await
        })
    }

    fn held(&self) -> Result<Held, Refused> {
        self.check_held()?;
        self.section.held()
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
}
