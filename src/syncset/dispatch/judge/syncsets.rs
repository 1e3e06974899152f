//! Syncsets that are judged as a whole, since their documents have changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::guards::{self, Lost, Row};
use super::{Court, Verdicts, count, since, texts};
use crate::db::{self, Database, Transaction, Type, column};
use crate::syncset::dispatch::error::DispatchError;
use crate::syncset::dispatch::held::{HeldSyncset, Released};
use crate::syncset::dispatch::ids;
use crate::syncset::dispatch::tracked::deletable;
use crate::syncset::rules::guard::{
    APPROVE, Approval, Case, Cause, Change, Dropped, Objects, State, dropped_since, has_precious, precious_row,
};
use crate::syncset::rules::matching::Audience;
use crate::syncset::rules::name::{SyncSetKind, SyncSetName};
use crate::syncset::store::is_left;

/// Most clusters whose objects are looked at, and most of their objects, where documents are not known any more.
const SAMPLE: usize = 500;
const OBJECTS: usize = 5_000;
/// Most documents that are read again because they were replaced before they were judged. If there are more, what clusters have counts.
const REPLACED: usize = 32;

/// Version, kind, namespace and name of a resource.
pub(super) type Resource = [Option<String>; 4];
/// The spec of a document without resources and patches, and its resources.
type Replaced = (serde_json::Value, Option<Vec<Resource>>);

/// A syncset, as its document and the last judgement have it.
#[expect(clippy::struct_excessive_bools, reason = "what is known of a syncset are independent facts")]
struct Subject {
    id: Uuid,
    kind: String,
    namespace: String,
    name: String,
    state: State,
    approval: Approval,
    /// What is stored of approvals.
    always: bool,
    approved: i64,
    /// Whether and why it was held.
    was_held: bool,
    cause: Option<Cause>,
    /// What it named before, what documents named that were replaced before they were judged, and what clusters have if these are not
    /// known.
    before: Vec<Objects>,
    /// What a document names that is held.
    held_objects: Option<Objects>,
    /// What edits have dropped within the time that counts.
    dropped: Vec<Dropped>,
    /// The time, as the database prints it.
    now: String,
    /// Clusters that count as lost, on which nothing is tracked any more.
    executed: usize,
    /// Clusters that count as lost, and to which objects were applied again since, or those that it lost under other names are deleted.
    applied_again: usize,
    /// Clusters that count as lost, on which something is still to be deleted.
    lost: usize,
    /// Those of them that it matches, and lost objects on because they got other names.
    renamed: usize,
    /// Clusters on which it tracks objects.
    tracks: usize,
    /// Whether something precious is among what it tracks, as far as that matters: on one of at most two clusters.
    tracks_precious: bool,
    /// Whether something precious is among what it would delete on clusters that it has lost.
    loses_precious: bool,
}

impl Subject {
    /// Whether an annotation approves an edit that was held, once: that clusters lost their labels meanwhile was not shown.
    fn approves_only_edits(&self) -> bool {
        matches!(self.approval, Approval::Once) && self.was_held && self.cause == Some(Cause::Dropped)
    }

    /// Whether an annotation approves, once, that clusters have other labels. What edits have dropped was not shown then.
    fn approves_only_labels(&self) -> bool {
        matches!(self.approval, Approval::Once)
            && self.was_held
            && matches!(self.cause, Some(Cause::Unmatched | Cause::Renamed))
    }
}

/// All syncsets that may have to delete something: those that exist, those that were judged, and those that track objects.
pub(in crate::syncset::dispatch) async fn everything(database: &Database) -> Result<Vec<Uuid>, DispatchError> {
    const QUERY: &str = "all_syncsets";
    const TEXT: &str = "with recursive tracking(syncset) as ( \
           (select syncset from towline_applied where tracked order by syncset limit 1) \
           union all select (select a.syncset from towline_applied a where a.tracked and a.syncset > tracking.syncset \
             order by a.syncset limit 1) from tracking where tracking.syncset is not null) \
         select id::text from (select id from towline_documents where kind in ('syncsets', 'selectorsyncsets') \
           union select syncset from towline_guard union select syncset from tracking where syncset is not null) s order by id";
    ids(QUERY, &database.all(QUERY, TEXT, &[]).await?)
}

impl Court {
    /// Judges syncsets as a whole.
    pub(super) async fn syncsets(
        self,
        transaction: &mut Transaction<'static>,
        ids: &[Uuid],
    ) -> Result<Verdicts, DispatchError> {
        if ids.is_empty() {
            return Ok(Verdicts::default());
        }
        let mut subjects = self.read(transaction, ids).await?;
        let mut lost = Lost::default();
        look_at_clusters(transaction, &mut subjects, &mut lost).await?;
        let (mut verdicts, mut rows) = (Verdicts::default(), Vec::with_capacity(subjects.len()));
        for subject in subjects {
            if subject.approves_only_edits() {
                lost.keep(subject.id);
                verdicts.undecided.insert(subject.id);
            } else if subject.approval != Approval::None {
                lost.approve(subject.id);
            }
            rows.push(conclude(subject, &mut verdicts));
        }
        lost.write(transaction).await?;
        guards::write(transaction, self.version, &rows).await?;
        Ok(verdicts)
    }

    async fn read(self, transaction: &mut Transaction<'static>, ids: &[Uuid]) -> Result<Vec<Subject>, DispatchError> {
        const QUERY: &str = "judge_syncsets";
        let text = format!(
            "select i.id::text, d.id is not null, \
               coalesce(case d.kind when 'syncsets' then 'SyncSet' when 'selectorsyncsets' then 'SelectorSyncSet' end, \
                 nullif(g.kind, ''), r.kind, ''), \
               coalesce(d.namespace, g.namespace, r.namespace, ''), coalesce(d.name, nullif(g.name, ''), r.name, ''), \
               coalesce(d.generation, 0), d.annotations->>$2, ((d.data->'spec') - '{{resources,patches}}'::text[])::text, \
               {resources}::text, \
               coalesce(g.held, false), g.cause, {always}, coalesce(g.approved, 0), g.objects::text, \
               g.held_objects::text, \
               {documents}::text, case when d.id is not null and (g.objects is null or (d.version > g.judged and k.is_gap) or {unread} > {REPLACED} + 1) then \
                 (select jsonb_agg(x.object) from (select distinct jsonb_build_array(a.api_group, a.kind, a.namespace, a.name) as object \
                   from ({deletable} limit {SAMPLE}) t cross join lateral (select * from towline_applied a \
                     where a.syncset = i.id and a.cluster = t.cluster and a.tracked and not a.adopted and a.wanted) a limit {OBJECTS}) x) end::text, \
               (select count(*) from towline_lost l where l.syncset = i.id and l.at > {since} and not exists ( \
                 select from towline_applied a where a.syncset = i.id and a.tracked and not a.adopted and a.cluster = l.cluster)), \
               (select jsonb_agg(e) from jsonb_array_elements(g.dropped) e where (e->>'at')::timestamptz > {since})::text, \
               to_json(now()) #>> '{{}}', \
               exists (select from ({deletable} limit 2) t join towline_applied a on a.cluster = t.cluster and a.syncset = i.id \
                 and a.tracked and not a.adopted and {precious}) \
             from unnest($1::text[]::uuid[]) i(id) \
             cross join (select c.cursor, m.base > c.cursor as is_gap from towline_claim c, towline_meta m where c.name = 'dispatcher') k \
             left join towline_documents d on d.kind in ('syncsets', 'selectorsyncsets') and d.id = i.id and d.deleted_at is null \
             left join towline_guard g on g.syncset = i.id \
             left join lateral (select * from towline_result where syncset = i.id limit 1) r on d.id is null and g.syncset is null",
            resources = resources("d.data"),
            documents = replaced(),
            unread = unread("k.cursor"),
            always = always(),
            deletable = deletable("i.id"),
            precious = precious_row("a"),
            since = since("g"),
        );
        let params = [(&texts(ids) as _, Type::TEXT_ARRAY), (&APPROVE as _, Type::TEXT)];
        let mut subjects = Vec::with_capacity(ids.len());
        let mut rows = transaction.rows(QUERY, &text, &params).await?;
        while let Some(row) = rows.next().await? {
            subjects.push(self.subject(QUERY, &row)?);
        }
        Ok(subjects)
    }

    fn subject(self, query: &'static str, row: &db::Row) -> Result<Subject, DispatchError> {
        let exists = column::<bool>(query, row, 1)?;
        let text = |index| column::<Option<&str>>(query, row, index);
        let (kind, namespace, name) = (column(query, row, 2)?, column(query, row, 3)?, column(query, row, 4)?);
        let (kind, namespace, name): (String, String, String) = (kind, namespace, name);
        let named = SyncSetName {
            kind: if kind == SyncSetKind::SyncSet.as_str() {
                SyncSetKind::SyncSet
            } else {
                SyncSetKind::SelectorSyncSet
            },
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let state = if exists {
            let resources: Option<Vec<Resource>> = json(text(8)?);
            State::read(&named, &json(text(7)?).unwrap_or_default(), resources.as_deref())
        } else {
            State::Gone
        };
        let tracked: Option<Objects> = json(text(16)?);
        let mut before: Vec<Objects> = json::<Objects>(text(13)?).into_iter().collect();
        before.extend(tracked.map(|tracked| state.as_named(tracked)));
        for (spec, resources) in json::<Vec<Replaced>>(text(15)?).unwrap_or_default() {
            before.extend(State::read(&named, &spec, resources.as_deref()).into_tracked());
        }
        let (generation, approved) = (column(query, row, 5)?, column(query, row, 12)?);
        // Of one that is gone, what its last document said.
        let always = if exists { text(6)? == Some("always") } else { column(query, row, 11)? };
        let approval = match Approval::read(text(6)?, generation, approved) {
            // It would be used up for something that nobody could know.
            _ if state == State::Unreadable => Approval::None,
            _ if always || !self.is_guarding => Approval::Always,
            approval => approval,
        };
        Ok(Subject {
            id: column::<&str>(query, row, 0)?.parse().map_err(|error| undecodable(query, error))?,
            kind,
            namespace,
            name,
            state,
            approval,
            always,
            approved: if approval == Approval::Once { generation } else { approved },
            was_held: column(query, row, 9)?,
            cause: text(10)?.and_then(Cause::of_name),
            before,
            held_objects: json(text(14)?),
            dropped: json(text(18)?).unwrap_or_default(),
            now: column(query, row, 19)?,
            executed: count(column(query, row, 17)?),
            applied_again: 0,
            lost: 0,
            renamed: 0,
            tracks: 0,
            tracks_precious: column(query, row, 20)?,
            loses_precious: false,
        })
    }
}

/// The resources of a document's data, as an expression.
pub(super) fn resources(data: &str) -> String {
    format!(
        "case when jsonb_typeof({data} #> '{{spec,resources}}') = 'array' then coalesce((select jsonb_agg(jsonb_build_array( \
             e->>'apiVersion', e->>'kind', e #>> '{{metadata,namespace}}', e #>> '{{metadata,name}}')) \
           from jsonb_array_elements({data} #> '{{spec,resources}}') e), '[]') end"
    )
}

/// Whether a syncset that is gone was approved by the last document that it had, as an expression. What was judged of an older one
/// may have been revoked since; if that is not known, nothing is approved.
fn always() -> &'static str {
    "case when d.id is not null or g.gone then coalesce(g.always, false) else coalesce(( \
       select coalesce(l.document, o.document) #>> array['annotations', $2] = 'always' from towline_log l \
         left join towline_log o on o.version = l.old_version \
       where l.version > k.cursor and l.id = i.id and l.kind in ('syncsets', 'selectorsyncsets') \
       order by l.version desc limit 1), false) end"
}

/// How many versions of a syncset are above the cursor, at most two more than are read of those that were replaced, as an expression.
pub(super) fn unread(cursor: &str) -> String {
    format!(
        "(select count(*) from (select from towline_log l where l.id = i.id and l.kind in ('syncsets', 'selectorsyncsets') \
           and l.version > {cursor} limit {REPLACED} + 2) l)"
    )
}

/// The documents of a syncset above the cursor but the newest, as an expression: passes do not wait for the dispatcher to apply them.
fn replaced() -> String {
    format!(
        "(with recursive replaced(version) as ( \
             select l.old_version from towline_log l where l.version = d.version and l.version > k.cursor \
             union all select l.old_version from replaced r join towline_log l on l.version = r.version where l.version > k.cursor) \
           select jsonb_agg(jsonb_build_array((o.data->'spec') - '{{resources,patches}}'::text[], {resources})) \
           from (select l.document->'data' as data from replaced r join towline_log l on l.version = r.version \
             where l.version > k.cursor limit {REPLACED}) o)",
        resources = resources("o.data"),
    )
}

/// Judges a syncset, and says what is to be stored of it.
fn conclude(subject: Subject, verdicts: &mut Verdicts) -> Row {
    // What is deleted already counts only with what is still to be deleted.
    let executed = if subject.tracks > 0 { subject.executed } else { 0 };
    let is_dropped = subject.tracks_precious && subject.state.drops_precious(&subject.before, &subject.dropped);
    let facts = Case {
        precious: subject.loses_precious || is_dropped,
        held: subject.cause.filter(|_| subject.was_held),
        change: subject.state.change_within(&subject.before, &subject.dropped),
        approval: subject.approval,
        lost: subject.lost + subject.applied_again + executed,
        executed: subject.applied_again + executed,
        renamed: subject.renamed,
        tracks: subject.tracks + executed,
    };
    let cause = facts.judge();
    let is_gone = subject.state == State::Gone;
    let forgets_edits = subject.approval != Approval::None && !subject.approves_only_labels();
    let before: Option<Objects> = (!subject.before.is_empty()).then(|| subject.before.into_iter().flatten().collect());
    let drops = facts.change == Change::Living { drops: true };
    let dropped = match &subject.state {
        State::Gone => Vec::new(),
        // What was approved is not judged again, nor what a few clusters may delete: those that come later never had it.
        _ if forgets_edits || (drops && cause != Some(Cause::Dropped)) => Vec::new(),
        State::Living { deletes: true, objects: Some(after), .. } if !drops => {
            dropped_since(subject.dropped, before.as_ref().unwrap_or(&Objects::new()), after, &subject.now)
        }
        State::Living { .. } | State::Unreadable => subject.dropped,
    };
    let (objects, held_objects) = match subject.state {
        State::Gone => (None, None),
        State::Unreadable => (before, subject.held_objects),
        State::Living { objects: Some(after), .. } if cause == Some(Cause::Dropped) => (before, Some(after)),
        // A cluster that can't be reached still tracks what was to be deleted before, and would delete it after the next switch to
        // `Sync`. What is wanted in between is tracked nowhere.
        State::Living { deletes: false, objects, .. } if subject.tracks > 0 => (before.or(objects), None),
        State::Living { objects, .. } => (objects.or(before), None),
    };
    let row = Row {
        syncset: subject.id,
        gone: is_gone,
        held: cause.is_some(),
        cause: cause.map(Cause::as_str),
        clusters: facts.clusters(),
        tracks: facts.tracks,
        kind: subject.kind,
        namespace: subject.namespace,
        name: subject.name,
        always: subject.always,
        approved: subject.approved,
        objects,
        held_objects,
        dropped: (!dropped.is_empty()).then_some(dropped),
    };
    match cause {
        Some(cause) if !subject.was_held => verdicts.held.push(HeldSyncset {
            id: row.syncset,
            kind: row.kind.clone(),
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            cause,
            clusters: row.clusters,
            tracks: row.tracks,
            since: None,
        }),
        None if subject.was_held => {
            verdicts.released.push(Released::new(row.syncset, &row.kind, &row.namespace, &row.name));
        }
        _ => {}
    }
    row
}

/// Finds out of each syncset on which clusters it tracks objects, and which of these it matches no more; and which of those that it
/// has lost, and where its objects are deleted, it matches again.
async fn look_at_clusters(
    transaction: &mut Transaction<'static>,
    subjects: &mut [Subject],
    lost: &mut Lost,
) -> Result<(), DispatchError> {
    const QUERY: &str = "judge_tracked";
    // Each is looked up: the server may have last analyzed the tables when they were empty, and would join them row by row.
    let text = format!(
        "select i.id::text, t.cluster::text, c.namespace, c.name, case when i.selects then c.labels::text end, \
           l.at is not null and not l.back, coalesce(l.at > {since}, false), t.is_tracked, \
           l.objects is not null, coalesce(l.objects is not null and t.is_tracked and not l.back and l.at > {since} and ({is_left}), false), \
           i.precious and t.is_tracked and exists (select from towline_applied a where a.cluster = t.cluster and a.syncset = i.id \
             and a.tracked and not a.adopted and {precious} \
             and (l.objects is null or l.objects @> jsonb_build_array(jsonb_build_array(a.api_group, a.kind, a.namespace, a.name)))) \
         from unnest($1::text[]::uuid[], $2::boolean[], $3::boolean[]) i(id, selects, precious) left join towline_guard g on g.syncset = i.id \
           cross join lateral (select x.cluster, true as is_tracked from ({deletable}) x \
             union all select u.cluster, false from towline_lost u where u.syncset = i.id and not exists ( \
               select from towline_applied a where a.syncset = i.id and a.tracked and not a.adopted and a.cluster = u.cluster)) t \
           cross join lateral (select c.namespace, c.name, c.labels from clusters c \
             where c.kind = 'clusters' and c.id = t.cluster and c.deleted_at is null limit 1) c \
           left join lateral (select l.* from towline_lost l where l.cluster = t.cluster and l.syncset = i.id limit 1) l on true",
        since = since("g"),
        deletable = deletable("i.id"),
        precious = precious_row("a"),
        is_left = is_left("l"),
    );
    let known: Vec<String> = subjects.iter().map(|subject| subject.id.to_string()).collect();
    let selects =
        |subject: &Subject| matches!(&subject.state, State::Living { audience: Audience::Selected { .. }, .. });
    let selecting: Vec<bool> = subjects.iter().map(selects).collect();
    let positions: BTreeMap<String, usize> = known.iter().cloned().zip(0..).collect();
    // What it named it may still have. If that is not known, it may have anything.
    let may_have = |subject: &Subject| subject.before.is_empty() || has_precious(&subject.before);
    let precious: Vec<bool> = subjects.iter().map(may_have).collect();
    let params =
        [(&known as _, Type::TEXT_ARRAY), (&selecting as _, Type::BOOL_ARRAY), (&precious as _, Type::BOOL_ARRAY)];
    let mut rows = transaction.rows(QUERY, &text, &params).await?;
    while let Some(row) = rows.next().await? {
        let position = positions.get(column::<&str>(QUERY, &row, 0)?);
        let Some(subject) = position.and_then(|position| subjects.get_mut(*position)) else { continue };
        let labels = json(column::<Option<&str>>(QUERY, &row, 4)?).unwrap_or_default();
        let is_lost = subject.state.loses(column(QUERY, &row, 2)?, column(QUERY, &row, 3)?, &labels);
        let (was_lost, counts) = (column::<bool>(QUERY, &row, 5)?, column::<bool>(QUERY, &row, 6)?);
        let is_tracked: bool = column(QUERY, &row, 7)?;
        let has_precious: bool = column(QUERY, &row, 10)?;
        let deletes = matches!(subject.state, State::Living { deletes: true, .. });
        subject.tracks += usize::from(is_tracked);
        if subject.state == State::Unreadable {
            continue;
        }
        let (is_renamed, is_left) = (column::<bool>(QUERY, &row, 8)?, column::<bool>(QUERY, &row, 9)?);
        if is_renamed && (is_left || !is_lost || !is_tracked) {
            // What is noted there stays right: it was compared before. More than that counts only once.
            let has_counted = is_tracked && counts && (deletes || is_lost);
            subject.renamed += usize::from(has_counted);
            subject.lost += usize::from(has_counted && is_left);
            subject.loses_precious |= has_counted && is_left && has_precious;
            subject.applied_again += usize::from(has_counted && !is_left);
            continue;
        }
        let was_lost = was_lost && !is_renamed;
        // What was lost, deleted and applied again was deleted all the same.
        let was_deleted = is_tracked && counts && !was_lost && !is_lost;
        subject.applied_again += usize::from(was_deleted);
        let counts_as_lost = is_tracked && is_lost && (counts || !was_lost);
        subject.lost += usize::from(counts_as_lost);
        // What is lost with an approval from now on counts no more.
        subject.loses_precious |= counts_as_lost && has_precious;
        if is_lost == was_lost || subject.state == State::Gone {
            continue;
        }
        let cluster = column::<&str>(QUERY, &row, 1)?.parse().map_err(|error| undecodable(QUERY, error))?;
        if is_lost {
            lost.lose(cluster, subject.id, subject.approval != Approval::None);
        } else if is_tracked {
            lost.regain(cluster, subject.id);
        } else {
            lost.come_back(cluster, subject.id);
        }
    }
    Ok(())
}

/// What the database prints is valid JSON; what is not of this form is not there.
fn json<T: serde::de::DeserializeOwned>(text: Option<&str>) -> Option<T> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

fn undecodable(query: &'static str, error: uuid::Error) -> db::Error {
    db::Error::Decode { query, source: Arc::new(error) }
}
