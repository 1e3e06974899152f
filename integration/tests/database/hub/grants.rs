//! What a watch shows to a token is what a list shows it, and both are what its grants say, for random grants.

use std::collections::{BTreeMap, BTreeSet};

use integration::eventually;
use integration::hub::{Client, Event, Request, Watch};
use integration::soak::{Random, seed};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::hub::world::{Hub, LIMIT, database, done, folder, grant, problem_of, run};

/// Names that begin like others, so that a prefix may include more than it looks like.
const NAMESPACES: [&str; 6] = ["team", "team-a", "team-ab", "team-b", "tea", "shop"];
const PLACES: [&str; 10] = ["team", "team-a", "shop", "team*", "team-*", "team-a*", "tea*", "*", "other", "s*"];
const ROLES: [&str; 3] = ["read", "write", "admin"];
const WRITER: &str = "writer";
/// The name of the document of a namespace that is changed last.
const LAST: &str = "z-last";

/// A token with its grants: role and namespaces.
struct Token {
    name: String,
    grants: Vec<(&'static str, &'static str)>,
}

impl Token {
    /// The rule, told once more: `*` is everywhere, `p*` a plain prefix, all else a name.
    fn sees(&self, namespace: Option<&str>) -> bool {
        self.grants.iter().any(|(_, places)| match (places.strip_suffix('*'), namespace) {
            (Some(""), _) => true,
            (Some(prefix), Some(namespace)) => namespace.starts_with(prefix),
            (None, Some(namespace)) => *places == namespace,
            (_, None) => false,
        })
    }
}

fn path(kind: &str, namespace: Option<&str>, parameters: &str) -> String {
    let of = namespace.map_or_else(String::new, |namespace| format!("namespace={namespace}&"));
    format!("/v1/{kind}?{of}{parameters}")
}

fn key(object: &Value) -> (String, String) {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Documents by namespace and name.
type Items = BTreeMap<(String, String), Value>;

/// What a list shows, page by page; or the problem.
async fn listed(client: &mut Client, kind: &str, namespace: Option<&str>) -> Result<Items, String> {
    let mut items = Items::new();
    let mut after = String::new();
    loop {
        let page = Request::get(&path(kind, namespace, &format!("limit=2{after}")));
        let reply = client.send(&page).await.expect("an answer");
        if reply.status != 200 {
            return Err(problem_of(&reply));
        }
        let page = reply.json().expect("JSON");
        for item in page["items"].as_array().expect("items") {
            assert!(items.insert(key(item), item.clone()).is_none(), "twice: {item}");
        }
        match page["continue"].as_str() {
            Some(next) => after = format!("&continue={next}"),
            None => return Ok(items),
        }
    }
}

/// What a watch shows until its first bookmark; or the problem.
async fn watched(client: &mut Client, kind: &str, namespace: Option<&str>) -> Result<(Items, Watch), String> {
    let request = Request::get(&path(kind, namespace, "watch=true"));
    // A refused one is asked for as a request, whose answer is whole.
    let Ok(mut watch) = client.watch_with(&request).await else {
        let reply = client.send(&request).await.expect("an answer");
        return Err(problem_of(&reply));
    };
    let mut items = Items::new();
    loop {
        let event = watch.next().await.expect("an event").expect("the watch goes on");
        match event.kind.as_str() {
            "ADDED" => drop(items.insert(key(&event.object), event.object)),
            "BOOKMARK" => return Ok((items, watch)),
            other => panic!("{other}: {}", event.object),
        }
    }
}

/// Tokens with random grants, and some that are always among them.
fn tokens(random: &mut Random) -> Vec<Token> {
    let mut drawn: Vec<Token> = (0..12)
        .map(|number| {
            let mut one = || (ROLES[random.index(ROLES.len())], PLACES[random.index(PLACES.len())]);
            let mut grants = vec![one(), one()];
            grants.truncate(1 + number % 2);
            Token { name: format!("token-{number}"), grants }
        })
        .collect();
    drawn.push(Token { name: "all".to_owned(), grants: vec![("read", "*")] });
    drawn.push(Token { name: "prefix".to_owned(), grants: vec![("admin", "team-a*")] });
    drawn.push(Token { name: "one".to_owned(), grants: vec![("write", "team-a"), ("read", "shop")] });
    drawn
}

/// Clusters in every namespace, and something that has none.
async fn fill(writer: &mut Client) {
    for namespace in NAMESPACES {
        for name in ["a", "b", "c", LAST] {
            let cluster = json!({"name": name, "namespace": namespace, "kubeconfig": "k"});
            done(writer, &Request::post("/v1/clusters", &cluster)).await;
        }
    }
    let everywhere = json!({"name": "everywhere", "spec": {"clusterDeploymentSelector": {}}});
    done(writer, &Request::post("/v1/selectorsyncsets", &everywhere)).await;
}

/// Changes of all namespaces, in random order; the last one of each comes at the end.
async fn change(writer: &mut Client, random: &mut Random) {
    for _ in 0..60 {
        let namespace = NAMESPACES[random.index(NAMESPACES.len())];
        let name = ["a", "b", "c", "new"][random.index(4)];
        let one = format!("/v1/clusters/{namespace}/{name}");
        let cluster = json!({"name": name, "namespace": namespace, "kubeconfig": "k"});
        let request = match random.below(3) {
            0 => Request::post("/v1/clusters", &cluster),
            1 => Request::delete(&one),
            _ => Request::merge_patch(&one, &json!({"labels": {"n": random.below(1000).to_string()}})),
        };
        let status = writer.send(&request).await.expect("an answer").status;
        assert!([200, 201, 404, 409].contains(&status), "{status}");
    }
    for namespace in NAMESPACES {
        let last = json!({"labels": {"last": "yes"}});
        done(writer, &Request::merge_patch(&format!("/v1/clusters/{namespace}/{LAST}"), &last)).await;
    }
}

/// A watch that shows something, and what it has shown.
struct Open {
    what: String,
    namespace: Option<&'static str>,
    watch: Watch,
    client: Client,
    items: Items,
}

impl Open {
    /// Compares a list and the beginning of a watch with the grants. None if there is nothing more to see.
    async fn of(mut client: Client, token: &Token, namespace: Option<&'static str>, all: &Items) -> Option<Self> {
        let what = format!("{} {:?} of {namespace:?}", token.name, token.grants);
        let list = listed(&mut client, "clusters", namespace).await;
        let watch = watched(&mut client, "clusters", namespace).await;
        if !token.sees(namespace) {
            let problems = (list.err(), watch.err());
            let forbidden = || Some("forbidden".to_owned());
            assert_eq!(problems, (forbidden(), forbidden()), "{what}");
            return None;
        }
        let list = list.unwrap_or_else(|problem| panic!("{what}: {problem}"));
        let (items, watch) = watch.unwrap_or_else(|problem| panic!("{what}: {problem}"));
        let mut expected = all.clone();
        expected.retain(|(of, _), _| namespace.is_none_or(|namespace| namespace == of));
        assert_eq!(list, expected, "{what}");
        assert_eq!(items, list, "{what}");
        (!items.is_empty()).then_some(Self { what, namespace, watch, client, items })
    }

    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Event> {
        let what = &self.what;
        let event = timeout(LIMIT, self.watch.next()).await.unwrap_or_else(|_| panic!("{what}: nothing happens"));
        event.unwrap_or_else(|error| panic!("{what}: {error:?}"))
    }

    /// Follows the watch until it has shown the last change of each of its namespaces.
    async fn follow(&mut self) {
        let mut left: BTreeSet<&str> = self.namespace.map_or_else(|| NAMESPACES.into(), |namespace| [namespace].into());
        while !left.is_empty() {
            let event = self.next().await.unwrap_or_else(|| panic!("{}: it ends before {left:?}", self.what));
            if event.kind == "BOOKMARK" {
                continue;
            }
            let place = key(&event.object);
            let is_its_own = self.namespace.is_none_or(|namespace| namespace == place.0);
            assert!(is_its_own, "{}: {}", self.what, event.object);
            if event.object.pointer("/labels/last").is_some() {
                left.remove(place.0.as_str());
            }
            match event.kind.as_str() {
                "ADDED" | "MODIFIED" => drop(self.items.insert(place, event.object)),
                "DELETED" => drop(self.items.remove(&place)),
                other => panic!("{}: {other} {}", self.what, event.object),
            }
        }
        let list = listed(&mut self.client, "clusters", self.namespace).await.expect("a list");
        assert_eq!(self.items, list, "{}", self.what);
    }

    /// The token has lost its grants: it sees nothing more.
    async fn end(&mut self) {
        while let Some(event) = self.next().await {
            assert_eq!(event.kind, "BOOKMARK", "{}: {}", self.what, event.object);
        }
        let reply = self.client.send(&Request::get("/v1/clusters")).await.expect("an answer");
        assert_eq!(problem_of(&reply), "unauthenticated", "{}", self.what);
    }
}

#[test]
fn a_watch_shows_a_token_what_a_list_shows_it_and_nothing_else() {
    run(async {
        let mut random = Random::new(seed());
        let tokens = tokens(&mut random);
        let mut lines = grant("admin", "*", WRITER).await;
        for token in &tokens {
            for (role, places) in &token.grants {
                lines += &grant(role, places, &token.name).await;
            }
        }
        let file = folder("grants").join("tokens");
        std::fs::write(&file, lines).expect("a file");
        let path = file.display().to_string();
        let hub = Hub::start(&database("grants").await, &[("TOWLINE__HUB__TOKENS_FILE", &path)]).await;
        let mut writer = hub.client().with_token(WRITER);
        fill(&mut writer).await;
        let all = listed(&mut writer, "clusters", None).await.expect("a list");
        assert_eq!(all.len(), NAMESPACES.len() * 4);

        let places = NAMESPACES.map(Some).into_iter().chain([None, Some("empty")]);
        let mut open = Vec::new();
        for token in &tokens {
            for namespace in places.clone() {
                open.extend(Open::of(hub.client().with_token(&token.name), token, namespace, &all).await);
            }
            // What has no namespace needs all.
            let mut client = hub.client().with_token(&token.name);
            let list = listed(&mut client, "selectorsyncsets", None).await.is_ok();
            let watch = watched(&mut client, "selectorsyncsets", None).await.is_ok();
            assert_eq!((list, watch), (token.sees(None), token.sees(None)), "{} {:?}", token.name, token.grants);
        }
        assert!(open.len() > tokens.len(), "most tokens see something: {}", open.len());

        change(&mut writer, &mut random).await;
        for watch in &mut open {
            watch.follow().await;
        }
        std::fs::write(&file, grant("admin", "*", WRITER).await).expect("a file");
        for watch in &mut open {
            watch.end().await;
        }
    });
}

/// Whoever has the token of a further page still needs a grant for what it shows, at each page.
#[test]
fn each_page_of_a_list_is_authorised_anew() {
    run(async {
        let lines = [grant("read", "foo", "one").await, grant("read", "bar", "other").await];
        let writing = grant("admin", "*", WRITER).await;
        let file = folder("authorisedpages").join("tokens");
        std::fs::write(&file, format!("{}{}{writing}", lines[0], lines[1])).expect("a file");
        let path = file.display().to_string();
        let hub = Hub::start(&database("authorisedpages").await, &[("TOWLINE__HUB__TOKENS_FILE", &path)]).await;
        let [mut one, mut other, mut writer] = ["one", "other", WRITER].map(|name| hub.client().with_token(name));
        for name in ["a", "b", "c"] {
            let cluster = json!({"name": name, "namespace": "foo", "kubeconfig": "k"});
            done(&mut writer, &Request::post("/v1/clusters", &cluster)).await;
        }
        let first = "/v1/clusters?namespace=foo&limit=1";
        let page = done(&mut one, &Request::get(first)).await.json().expect("JSON");
        let further = Request::get(&format!("{first}&continue={}", page["continue"].as_str().expect("a token")));
        let shown = done(&mut one, &further).await.json().expect("JSON");
        assert_eq!(shown["items"][0]["name"], "b");
        let refused = other.send(&further).await.expect("an answer");
        assert_eq!((refused.status, problem_of(&refused).as_str()), (403, "forbidden"));
        std::fs::write(&file, format!("{}{writing}", lines[1])).expect("a file");
        eventually("the grant to be gone", LIMIT, async || match one.send(&further).await.expect("an answer").status {
            401 => Ok(()),
            status => Err(status.to_string()),
        })
        .await
        .expect("no further page");
    });
}
