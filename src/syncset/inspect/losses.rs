//! What becomes of the objects that a syncset drops on one cluster: each is looked at as a pass looks at it before it deletes.
//! Nothing is deleted here.

use std::collections::BTreeMap;

use super::ANSWER_WITHIN;
use super::trial::says_nothing_of_objects;
use crate::cluster::{Error, Kind, KindError, KindId};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::naming::Names;
use crate::syncset::plan::object::MANAGED;
use crate::syncset::plan::object::PRUNE;
use crate::syncset::plan::pass::Release;
use crate::syncset::plan::rows::AppliedRow;
use crate::syncset::plan::seen::seen;
use crate::syncset::plan::spec::Mode;
use crate::syncset::plan::wanted::{Live, Wanted, group_defined_by, is_definition_of, is_namespace, is_within};
use crate::syncset::run::work::Client;

/// What would become of an object that nobody wants any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Gone,
    Deleted,
    /// It would stay and be forgotten; why.
    Stays(String),
    /// It can't be deleted, or it is not known what would become of it.
    Failed(String),
}

/// The objects that a syncset has sent and that nobody wants any more, what may be in others before these.
pub(super) fn dropped<'r>(syncset: &Live, applied: &'r [AppliedRow], wanted: &Wanted) -> Vec<&'r AppliedRow> {
    if syncset.header.mode != Mode::Sync {
        return Vec::new();
    }
    let is_dropped = |row: &&AppliedRow| {
        let is_sent = row.syncset == syncset.header.id && (row.tracked || row.content.is_some());
        is_sent && wanted.winner(&row.object).is_none() && !wanted.may_want(&row.object)
    };
    let mut rows: Vec<&AppliedRow> = applied.iter().filter(is_dropped).collect();
    let is_outer = |object: &ObjectRef| (is_namespace(object), group_defined_by(object).is_some());
    rows.sort_by(|one, other| {
        is_outer(&one.object).cmp(&is_outer(&other.object)).then_with(|| one.object.cmp(&other.object))
    });
    rows
}

pub(super) struct Losses<'a> {
    client: &'a mut Client,
    kinds: &'a BTreeMap<KindId, Result<Kind, KindError>>,
    applied: &'a [AppliedRow],
    wanted: &'a Wanted,
    awaited: &'a [Names],
    staying: Vec<ObjectRef>,
}

impl<'a> Losses<'a> {
    /// On the cluster of this client, which serves these kinds and has these rows, and to which rollouts are about to bring something.
    pub(super) fn new(
        client: &'a mut Client,
        kinds: &'a BTreeMap<KindId, Result<Kind, KindError>>,
        applied: &'a [AppliedRow],
        wanted: &'a Wanted,
        awaited: &'a [Names],
    ) -> Self {
        Self { client, kinds, applied, wanted, awaited, staying: Vec::new() }
    }

    /// What would become of an object. An error says that the cluster does not answer.
    pub(super) async fn of(&mut self, row: &AppliedRow) -> Result<Loss, Error> {
        let object = &row.object;
        let within = self.wanted.within(object).find(|within| self.may_define(object, within));
        if let Some(within) = within {
            return Ok(self.stays(object, &format!("{within} is still wanted")));
        }
        if self.awaited.iter().any(|names| names.need(object)) {
            return Ok(self.stays(object, "a rollout is about to want it"));
        }
        if self.staying.iter().any(|within| is_within(within, object) && self.may_define(object, within)) {
            return Ok(self.stays(object, "something stays that would be deleted with it"));
        }
        let found = match self.client.look(&row.api_version, object, ANSWER_WITHIN).await {
            Ok(Some(found)) => seen(&found),
            // The objects of a kind that is no longer served are gone.
            Ok(None) | Err(Error::NotServed { .. }) => return Ok(Loss::Gone),
            Err(error) if says_nothing_of_objects(&error) => return Err(error),
            Err(error) => return Ok(Loss::Failed(error.message())),
        };
        let release = Release::of(row, &found, self.applied, |object| self.wanted.winner(object).is_some());
        Ok(match release {
            None if found.is_terminating() => Loss::Gone,
            None if !row.tracked => self.stays(object, "its syncset is not to delete it"),
            None => Loss::Deleted,
            Some(Release::Wanted) => self.stays(object, "it is wanted under another name of its kind"),
            Some(Release::Unlabelled) => self.stays(object, &format!("it has lost the label {MANAGED}")),
            Some(Release::AnotherOwner) => self.stays(object, "this syncset is not the one that sent it last"),
            Some(Release::Adopted) => self.stays(object, "it was there before, or somebody else created it anew"),
            Some(Release::Kept) => self.stays(object, &format!("it has the annotation {PRUNE}")),
        })
    }

    fn stays(&mut self, object: &ObjectRef, why: &str) -> Loss {
        self.staying.push(object.clone());
        Loss::Stays(why.to_owned())
    }

    /// Whether an object that is a namespace or a definition may be the one of an object within.
    fn may_define(&self, outer: &ObjectRef, within: &ObjectRef) -> bool {
        let mut kinds = self.kinds.iter().filter(|(id, _)| id.group == within.group && id.kind == within.kind);
        let kind = kinds.find_map(|(_, kind)| kind.as_ref().ok());
        is_namespace(outer) || kind.is_none_or(|kind| is_definition_of(outer, &kind.resource.plural, &within.group))
    }
}
