//! Reads whole objects, for the health of what was applied. Of an object nothing is kept but what is made of it at once: many passes may
//! read at the same time.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Executor, named};
use crate::cluster::{Cluster, Kind, KindError, KindId, ObjectKey, Pages};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object::MANAGED;
use crate::syncset::plan::pass::{Address, Refused};
use crate::syncset::run::work::refusal::{Failed, Missing, Stop};

/// The most objects of a list, and the most bytes of one of them.
const MOST_LISTED: usize = 100_000;
const LARGEST_OBJECT: usize = 2 << 20;
/// From so many objects of a kind on, they are listed.
const FEWEST_TO_LIST: usize = 3;
/// Objects that a list has not brought, and that are read by themselves.
const MOST_SINGLE: usize = 20;

/// What was made of an object; none if there is no such object.
type Found<T> = Result<Option<T>, Refused>;

impl Executor<'_> {
    /// Reads these objects of a kind, as `apps/v1`, `Deployment`: one or two by themselves, more by one list of all that bear our label. What the list does not
    /// bring is read by itself, up to a few; what is missing in the answer was not read.
    pub async fn read_whole<T: Send>(
        &mut self,
        (api_version, kind): (&str, &str),
        wanted: &BTreeSet<ObjectRef>,
        take: impl Fn(&ObjectRef, &Value) -> T + Send + Sync,
    ) -> Result<BTreeMap<ObjectRef, Found<T>>, Stop> {
        let cluster = self.asked();
        let (id, served) = match self.served_kind(&cluster, KindId::of(api_version, kind)).await {
            Ok(found) => found,
            Err(Failed::Refused(refused)) => {
                return Ok(wanted.iter().map(|object| (object.clone(), Err(refused.clone()))).collect());
            }
            Err(Failed::Stopped(stop)) => return Err(stop),
        };
        let mut found: BTreeMap<ObjectRef, Found<T>> = BTreeMap::new();
        let mut not_listed = None;
        if wanted.len() >= FEWEST_TO_LIST {
            match self.listed((&id, &served), wanted, &take).await {
                Ok(listed) => found.extend(listed.into_iter().map(|(object, made)| (object, Ok(Some(made))))),
                // Its account may read single objects all the same.
                Err(Failed::Refused(refused)) => not_listed = Some(refused),
                Err(Failed::Stopped(stop)) => return Err(stop),
            }
        }
        let left: Vec<&ObjectRef> =
            wanted.iter().filter(|object| !found.contains_key(object)).take(MOST_SINGLE).collect();
        for object in left {
            let (_, key) = named(Address { object, api_version });
            let read = self.asked().read_whole(&served, &key).await;
            let made = match self.answered(&id, read, Missing::Unclear) {
                Ok(read) => Ok(read.as_ref().map(|read| take(object, read))),
                Err(Failed::Refused(refused)) => Err(refused),
                Err(Failed::Stopped(stop)) => return Err(stop),
            };
            found.insert(object.clone(), made);
        }
        if let Some(refused) = not_listed {
            for object in wanted {
                found.entry(object.clone()).or_insert_with(|| Err(refused.clone()));
            }
        }
        Ok(found)
    }

    /// How a kind is served, in another version if not in this one.
    async fn served_kind(&mut self, cluster: &Cluster, id: KindId) -> Result<(KindId, Kind), Failed> {
        match self.look_up(cluster, &id).await {
            Ok(kind) => Ok((id, kind)),
            Err(KindError::OtherVersion { api_version, .. }) => {
                let id = KindId::of(&api_version, &id.kind);
                let kind = self.look_up(cluster, &id).await.map_err(|error| Failed::of_kind(&error))?;
                Ok((id, kind))
            }
            Err(error) => Err(Failed::of_kind(&error)),
        }
    }

    async fn listed<T: Send>(
        &mut self,
        (id, kind): (&KindId, &Kind),
        wanted: &BTreeSet<ObjectRef>,
        take: &(impl Fn(&ObjectRef, &Value) -> T + Send + Sync),
    ) -> Result<Vec<(ObjectRef, T)>, Failed> {
        let by_name: BTreeMap<(&str, &str), &ObjectRef> =
            wanted.iter().map(|object| ((object.namespace.as_str(), object.name.as_str()), object)).collect();
        let mut pages = Pages::of(kind, &format!("{MANAGED}=true"), MOST_LISTED)
            .of_objects_up_to(LARGEST_OBJECT)
            .of_whole_objects();
        let mut listed = Vec::new();
        loop {
            // The first page may be the first that the cluster answers at all.
            let cluster = self.asked();
            let page = pages
                .next_chosen(&cluster, |element| {
                    let ObjectKey { namespace, name } = element.key()?;
                    let Some(object) = by_name.get(&(namespace.as_ref(), name.as_ref())) else { return Ok(None) };
                    Ok(Some(((*object).clone(), take(object, &element.read()?))))
                })
                .await;
            match self.answered(id, page, Missing::Unclear)? {
                Some(page) => listed.extend(page),
                None => return Ok(listed),
            }
        }
    }
}
