//! One attempt to prepare a pass, with the memory that it has: all syncsets together, or one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use super::rendering::{self, Batch, Made};
use super::room::Room;
use super::secrets::{self, Contents};
use super::{GROWTH, OF_SECRET, PrepareError, Preparer, Setback, Weighed, built};
use crate::documents::Keyring;
use crate::syncset::payloads::Parsed;
use crate::syncset::rules::render;
use crate::syncset::rules::rows::{AppliedRow, PatchedRow, ResultRow};
use crate::syncset::rules::spec::Header;
use crate::syncset::rules::wanted::{Live, also_due};
use crate::syncset::store::{SealedSecret, SecretFacts, Snapshot};
use crate::syncset::work::plan::{self, LiveSyncset, Plan};

/// One attempt, with the memory that it has.
pub(super) struct Attempt<'p> {
    preparer: &'p Preparer,
    snapshot: &'p Snapshot,
    labels: BTreeMap<String, String>,
    /// The bytes of the syncsets' documents.
    sizes: BTreeMap<Uuid, usize>,
    pub(super) live: Vec<Live>,
    pub(super) applied: Vec<AppliedRow>,
    pub(super) patched: Vec<PatchedRow>,
    /// What is rendered so far takes so many bytes, with the rows of the cluster.
    pub(super) bytes: usize,
    pub(super) weighed: Weighed,
    /// Whether each syncset is read alone, with as much as a pass may have: then its text and its values have room whatever was
    /// rendered before. They are gone when the next one is read.
    is_alone: bool,
}

/// What was read of some syncsets.
#[derive(Default)]
struct Gathered {
    payloads: BTreeMap<Uuid, Parsed>,
    secrets: Contents,
    /// What they take, about.
    bytes: usize,
}

impl<'p> Attempt<'p> {
    pub(super) fn new(
        preparer: &'p Preparer,
        snapshot: &'p Snapshot,
        plan: &Plan,
        weighed: Weighed,
        live: Vec<Live>,
    ) -> Self {
        Self {
            preparer,
            snapshot,
            labels: plan.facts.as_ref().map(|facts| facts.labels.clone()).unwrap_or_default(),
            sizes: plan.live.iter().map(|live| (live.header.id, live.bytes)).collect(),
            live,
            applied: Vec::new(),
            patched: Vec::new(),
            bytes: 0,
            weighed,
            is_alone: false,
        }
    }

    /// The cluster, if it may have rows.
    fn with_rows(&self) -> Option<Uuid> {
        // Without a result and without applied objects there are no patches either.
        let has_rows = !self.snapshot.with_applied.is_empty() || !self.snapshot.results.is_empty();
        self.snapshot.cluster.as_ref().filter(|_| has_rows).map(|cluster| cluster.document.id)
    }

    /// Renders the syncsets that are due, and those that have to send something because of that.
    pub(super) async fn complete(&mut self, due: &BTreeSet<Uuid>) -> Result<(), Setback> {
        self.render(due, self.with_rows()).await?;
        loop {
            let more = also_due(&self.live, &self.applied);
            if more.is_empty() {
                return Ok(());
            }
            self.render(&more, None).await?;
        }
    }

    /// Renders all syncsets that have room in a pass, in the order in which they are applied. The others count like those that can't be read: nobody knows
    /// what they want, so what they have sent stays, and nothing is deleted.
    pub(super) async fn complete_one_by_one(&mut self) -> Result<(), Setback> {
        self.is_alone = true;
        let share = self.preparer.memory.share();
        if let Some(cluster) = self.with_rows() {
            let content = self.preparer.store.content(Some(cluster), &[], &[], &mut |bytes| bytes <= share).await?;
            if content.is_cut {
                return Err(Setback::Failed(PrepareError::TooManyObjects));
            }
            (self.applied, self.patched, self.bytes) = (content.applied, content.patched, content.rows);
        }
        let mut room = Room::of(share, self.bytes);
        for at in 0..self.live.len() {
            let Some(live) = self.live.get(at).filter(|live| live.rendered.is_none()) else { continue };
            let header = live.header.clone();
            let made = self.alone(header, &mut room).await?;
            let Some(live) = self.live.get_mut(at) else { continue };
            match made {
                Ok(made) => {
                    self.bytes += made.bytes;
                    live.rendered = Some(made.rendered);
                }
                Err(bytes) => {
                    live.rendered = Some(render::undecodable(room.failure(bytes)));
                    live.inputs = ResultRow::LEFT_OUT;
                }
            }
        }
        Ok(())
    }

    /// Renders one syncset, if it has room, or says how many bytes it takes.
    async fn alone(&mut self, header: Header, room: &mut Room) -> Result<Result<Made, usize>, Setback> {
        let size = self.size(header.id);
        if !room.may_have(size) {
            return Ok(Err(size));
        }
        match self.make(vec![header], None).await {
            Ok((_, made)) => {
                // There is one for each header.
                let Some(made) = made.into_iter().next() else { return Ok(Err(size)) };
                Ok(if room.takes(made.bytes) { Ok(made) } else { Err(made.bytes) })
            }
            Err(Setback::TooSmall(bytes)) => {
                room.refuses();
                Ok(Err(bytes))
            }
            Err(failed) => Err(failed),
        }
    }

    fn size(&self, syncset: Uuid) -> usize {
        self.sizes.get(&syncset).copied().unwrap_or_default()
    }

    /// Renders these syncsets, and reads the rows of the cluster, if it is given.
    async fn render(&mut self, syncsets: &BTreeSet<Uuid>, cluster: Option<Uuid>) -> Result<(), Setback> {
        let is_wanted = |live: &&Live| live.rendered.is_none() && syncsets.contains(&live.header.id);
        let headers: Vec<Header> = self.live.iter().filter(is_wanted).map(|live| live.header.clone()).collect();
        let (bytes, made) = self.make(headers, cluster).await?;
        let rendered: usize = made.iter().map(|made| made.bytes).sum();
        // Templates and aliases may have made more of it than was expected.
        self.has_room(bytes.max(rendered))?;
        self.bytes += rendered;
        let mut made: BTreeMap<Uuid, _> = made.into_iter().map(|made| (made.syncset, made.rendered)).collect();
        for live in self.live.iter_mut().filter(|live| live.rendered.is_none()) {
            live.rendered = made.remove(&live.header.id);
        }
        Ok(())
    }

    /// Reads and renders syncsets. Returns also what they take meanwhile.
    async fn make(&mut self, headers: Vec<Header>, cluster: Option<Uuid>) -> Result<(usize, Vec<Made>), Setback> {
        let Gathered { mut payloads, secrets, bytes } = self.gather(&headers, cluster).await?;
        let syncsets =
            headers.into_iter().filter_map(|header| payloads.remove(&header.id).map(|parsed| (header, parsed)));
        let batch = Batch { syncsets: syncsets.collect(), labels: self.labels.clone(), secrets };
        let mut made = batch.render(&self.preparer.aside).await?;
        for made in &mut made {
            // A syncset counts with at least the size of its document, which is known before it is read: so it counts the same in each pass.
            made.bytes = made.bytes.max(self.size(made.syncset));
        }
        Ok((bytes, made))
    }

    /// Reads what is needed to render these syncsets, with at most one statement.
    async fn gather(&mut self, headers: &[Header], cluster: Option<Uuid>) -> Result<Gathered, Setback> {
        let Preparer { store, payloads: cache, aside, keyring, .. } = self.preparer;
        let mut gathered = Gathered::default();
        let mut missing = Vec::new();
        for header in headers {
            match self.preparer.kept(header) {
                Some(parsed) => {
                    gathered.bytes += built(&parsed);
                    gathered.payloads.insert(header.id, parsed);
                }
                None => missing.push(header.id),
            }
        }
        self.has_room(gathered.bytes)?;
        let secrets = self.mapped(headers);
        if cluster.is_none() && missing.is_empty() && secrets.is_empty() {
            return Ok(gathered);
        }
        let ids: Vec<Uuid> = secrets.keys().copied().collect();
        let before = self.bytes + gathered.bytes;
        let (share, is_alone) = (self.preparer.memory.share(), self.is_alone);
        let mut has_room = |bytes: usize| if is_alone { bytes <= share } else { self.weighed.has(before + bytes) };
        let content = store.content(cluster, &missing, &ids, &mut has_room).await?;
        if content.is_cut {
            return Err(Setback::TooSmall(before + content.rows + content.bytes.saturating_mul(GROWTH)));
        }
        // They are there until the pass has ended.
        self.bytes += content.rows;
        if cluster.is_some() {
            (self.applied, self.patched) = (content.applied, content.patched);
        }
        let versions: BTreeMap<Uuid, i64> = content.payloads.iter().map(|row| (row.id, row.version)).collect();
        let mut read = headers.iter().filter(|header| missing.contains(&header.id));
        // A payload of another version does not fit to the header, nor to what was judged and is stored as its inputs.
        if read.any(|header| versions.get(&header.id) != Some(&header.version)) {
            return Err(Setback::Failed(PrepareError::Outdated));
        }
        let weighed = rendering::weigh(aside, content.payloads).await?;
        let built = weighed.iter().map(|(_, weight)| weight.bytes + 2 * weight.built).sum::<usize>();
        let sealed = content.secrets.iter().filter_map(|secret| secret.sealed.as_ref());
        let of_secrets = sealed.map(|sealed| sealed.len().saturating_mul(OF_SECRET)).sum::<usize>();
        if self.is_alone && of_secrets > share {
            return Err(Setback::TooSmall(of_secrets));
        }
        gathered.bytes += built + of_secrets;
        self.has_room(gathered.bytes)?;
        for (row, parsed) in rendering::parse(aside, weighed).await? {
            cache.keep(row.id, row.version, parsed.clone());
            gathered.payloads.insert(row.id, parsed);
        }
        let keyring = Arc::clone(&keyring.borrow());
        let open = move || opened(&secrets, content.secrets, &keyring);
        gathered.secrets = aside.run(of_secrets, open).await?;
        Ok(gathered)
    }

    /// The secrets that these syncsets map and may map, by their ids.
    fn mapped(&self, headers: &[Header]) -> BTreeMap<Uuid, SecretFacts> {
        let places: BTreeSet<(&str, &str)> = headers
            .iter()
            .flat_map(LiveSyncset::secrets)
            .map(|mapping| (mapping.source_namespace.as_str(), mapping.source_name.as_str()))
            .collect();
        let secrets = self.snapshot.secrets.iter();
        let mapped = secrets.filter(|facts| places.contains(&(facts.namespace.as_str(), facts.name.as_str())));
        mapped.map(|facts| (facts.id, facts.clone())).collect()
    }

    /// Whether so many bytes are there beside what is rendered.
    fn has_room(&mut self, bytes: usize) -> Result<(), Setback> {
        let bytes = self.bytes.saturating_add(bytes);
        if self.is_alone || self.weighed.has(bytes) { Ok(()) } else { Err(Setback::TooSmall(bytes)) }
    }
}

/// Opens secrets. One that has changed since the snapshot would be sent under what is known of the one before.
fn opened(
    facts: &BTreeMap<Uuid, SecretFacts>,
    read: Vec<SealedSecret>,
    keyring: &Keyring,
) -> Result<Contents, PrepareError> {
    let read: BTreeMap<Uuid, SealedSecret> = read.into_iter().map(|secret| (secret.id, secret)).collect();
    let mut contents = Contents::new();
    for (id, facts) in facts {
        let sealed = read.get(id).filter(|secret| secret.version == facts.version).ok_or(PrepareError::Outdated)?;
        let content = secrets::content(plan::source(facts), sealed.sealed.as_deref(), keyring);
        contents.insert((facts.namespace.clone(), facts.name.clone()), content);
    }
    Ok(contents)
}
