//! Lists that are read at once.

use parking_lot::Mutex;

use super::*;

/// The kinds of a step, and as paths name them.
const KINDS: [&str; 4] = ["ConfigMap", "Secret", "Service", "Pod"];
const PLURALS: [&str; 4] = ["configmaps", "secrets", "services", "pods"];

fn lists<'k>(kinds: &[&'k str]) -> Step<'k> {
    let list = |kind: &&'k str| List { api_version: "v1", kind, page: 0, compared: &Site };
    Step::Lists(kinds.iter().map(list).collect())
}

/// The position of the kind that a request lists.
fn position(line: &str) -> usize {
    let position = PLURALS.iter().position(|plural| line.starts_with(&format!("GET /api/v1/{plural}?")));
    position.unwrap_or_else(|| panic!("{line}"))
}

/// A page whose object says by its UID which kind it is of.
fn page(at: usize) -> Reply {
    let mut object = metadata();
    object["metadata"]["uid"] = json!(format!("u-{at}"));
    whole(200, &json!({"metadata": {}, "items": [object]}))
}

fn pages_of(answer: Answer) -> Vec<Result<Page, Refused>> {
    let Answer::Pages(pages) = answer else { panic!("{answer:?}") };
    pages
}

fn uids(pages: &[Result<Page, Refused>]) -> Vec<Result<String, Refusal>> {
    let uid = |page: &Page| page.objects.iter().map(|(_, _, seen)| seen.uid.clone()).collect();
    pages.iter().map(|page| page.as_ref().map(uid).map_err(|refused| refused.refusal)).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with what was read")]
fn found(at: usize) -> Result<String, Refusal> {
    Ok(format!("u-{at}"))
}

/// What has arrived at the server.
#[derive(Clone, Default)]
struct Arrived(Arc<Mutex<Vec<usize>>>);

impl Arrived {
    fn add(&self, line: &str) -> usize {
        let at = position(line);
        self.0.lock().push(at);
        at
    }

    fn count(&self) -> usize {
        self.0.lock().len()
    }

    async fn wait_for(&self, count: usize) {
        let arrive = async {
            while self.count() < count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, arrive)
            .await
            .unwrap_or_else(|_| panic!("{count} lists did not arrive at once, but {:?}", self.0));
    }
}

/// A client that knows the kinds, and an executor of a cluster that has answered.
async fn ready(client: &mut Client, fence: &Fence) {
    let mut executor = Executor::new(client, fence, LONG);
    for kind in &KINDS {
        executor.carry_out(&resolve(kind, false), LONG).await.unwrap();
    }
}

async fn answering<'c>(client: &'c mut Client, fence: &Fence, server: &Server) -> Executor<'c> {
    ready(client, fence).await;
    server.answer(|_| whole(200, &metadata()));
    let mut executor = Executor::new(client, fence, LONG);
    executor.carry_out(&look(&object("ConfigMap")), LONG).await.unwrap();
    server.lines();
    executor
}

/// All orders of four.
fn orders() -> Vec<[usize; 4]> {
    let all = (0..256_usize).map(|code| [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6]);
    all.filter(|order| (0..4).all(|at| order.contains(&at))).collect()
}

#[tokio::test]
async fn the_lists_of_a_step_are_in_flight_at_once_and_it_does_not_matter_which_answers_first() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    let mut executor = answering(&mut client, &fence, &server).await;
    assert_eq!(orders().len(), 24);
    for order in orders() {
        let (arrived, gates) = (Arrived::default(), std::array::from_fn(|_| Gate::default()));
        let (held, seen): ([Gate; 4], _) = (gates.clone(), arrived.clone());
        server.answer(move |line| {
            let at = seen.add(line);
            let reply = if at == 2 { status(403, "Forbidden", "forbidden", &json!({})) } else { page(at) };
            Reply::Held(held[at].clone(), Box::new(reply))
        });
        let release = async {
            arrived.wait_for(4).await;
            for (answered, at) in order.into_iter().enumerate() {
                gates[at].open();
                while server.noted() <= answered {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let step = lists(&KINDS);
        let (answer, ()) = tokio::join!(executor.carry_out(&step, LONG), release);
        let pages = pages_of(answer.unwrap());
        // One that is forbidden takes nothing from the others.
        assert_eq!(uids(&pages), [found(0), found(1), Err(Refusal::Forbidden), found(3)], "{order:?}");
        assert_eq!(server.lines().len(), 4, "one request for each");
    }
}

#[tokio::test]
async fn a_cluster_that_has_answered_nothing_is_asked_for_one_list_until_it_answers() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    ready(&mut client, &fence).await;
    let arrived = Arrived::default();
    let seen = arrived.clone();
    server.answer(move |line| {
        seen.add(line);
        Reply::Begun(Vec::new())
    });
    let mut executor = Executor::new(&mut client, &fence, LONG);
    let stop = stop(executor.carry_out(&lists(&KINDS), SHORT).await);
    assert!(matches!(&stop, Stop::Silent { logged, .. } if logged.contains("within 300ms")), "{stop:?}");
    assert_eq!(*arrived.0.lock(), [0]);
    assert!(!executor.is_answered());

    // It answers the first one, whatever it says, and is asked for the others then.
    let (arrived, gate) = (Arrived::default(), Gate::default());
    let (held, seen) = (gate.clone(), arrived.clone());
    server.answer(move |line| match seen.add(line) {
        0 => status(403, "Forbidden", "forbidden", &json!({})),
        at => Reply::Held(held.clone(), Box::new(page(at))),
    });
    let answer = executor.carry_out(&lists(&KINDS), LONG).await.unwrap();
    assert_eq!(uids(&pages_of(answer)), [Err(Refusal::Forbidden)]);
    assert_eq!(*arrived.0.lock(), [0]);
    let release = async {
        arrived.wait_for(4).await;
        gate.open();
    };
    let others = lists(&KINDS[1..]);
    let (answer, ()) = tokio::join!(executor.carry_out(&others, LONG), release);
    assert_eq!(uids(&pages_of(answer.unwrap())), [found(1), found(2), found(3)]);
}

#[tokio::test]
async fn one_list_that_is_not_answered_ends_the_step_and_the_others_are_dropped() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    let mut executor = answering(&mut client, &fence, &server).await;
    let (never, arrived) = (Gate::default(), Arrived::default());
    let (held, all) = (Gate::default(), arrived.clone());
    let opened = held.clone();
    server.answer(move |line| match all.add(line) {
        1 => Reply::Held(
            held.clone(),
            Box::new(Reply::Whole(401, "", r#"{"kind": "Status", "message": "said"}"#.to_owned())),
        ),
        at => Reply::Held(never.clone(), Box::new(page(at))),
    });
    let release = async {
        arrived.wait_for(4).await;
        opened.open();
    };
    let step = lists(&KINDS);
    let (stopped, ()) = tokio::join!(executor.carry_out(&step, LONG), release);
    let expected = Stop::silent(Unreachable::Unauthorized, "said".to_owned());
    assert_eq!(stop(stopped), expected);

    fence.close();
    assert_eq!(stop(executor.carry_out(&step, LONG).await), Stop::Lost);
    assert_eq!(arrived.count(), 4, "nothing is sent after the claim has ended");
}

#[tokio::test]
async fn a_429_belongs_to_its_list_and_what_the_others_bring_is_kept() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    let mut executor = answering(&mut client, &fence, &server).await;
    let (arrived, gate) = (Arrived::default(), Gate::default());
    let (seen, held) = (arrived.clone(), gate.clone());
    let throttled = |seconds: &'static str, message: &str| {
        Reply::Whole(429, seconds, format!(r#"{{"kind": "Status", "message": "{message}"}}"#))
    };
    server.answer(move |line| match seen.add(line) {
        0 => throttled("retry-after: 7\r\n", "short"),
        2 => throttled("retry-after: 9\r\n", "long"),
        at => Reply::Held(held.clone(), Box::new(page(at))),
    });
    let release = async {
        // The others are answered after these.
        while server.noted() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
        gate.open();
    };
    let step = lists(&KINDS);
    let (stopped, ()) = tokio::join!(executor.carry_out(&step, LONG), release);
    let Stop::Throttled { told, message, lists: brought } = stop(stopped) else { panic!("it is throttled") };
    assert_eq!((told, message.as_str()), (Duration::from_secs(9), "long"));
    let refused = Err(Refusal::Rejected);
    assert_eq!(uids(&brought), [refused.clone(), found(1), refused.clone(), found(3)]);

    // An API server that answers the first request so is asked for no other list.
    server.lines();
    let mut executor = Executor::new(&mut client, &fence, LONG);
    let Stop::Throttled { lists: brought, .. } = stop(executor.carry_out(&step, LONG).await) else {
        panic!("it is throttled")
    };
    assert_eq!(uids(&brought), [refused]);
    assert_eq!(server.lines().len(), 1);
}

#[tokio::test]
async fn lists_go_on_with_their_own_next_pages_beside_others_that_begin() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    let mut executor = answering(&mut client, &fence, &server).await;
    server.answer(|line| {
        let next = if line.contains("continue") { "" } else { &format!("after-{}", position(line)) };
        whole(200, &json!({"metadata": {"continue": next}, "items": [metadata()]}))
    });
    let first = pages_of(executor.carry_out(&lists(&KINDS[..3]), LONG).await.unwrap());
    assert!(first.iter().all(|page| page.as_ref().unwrap().more));
    server.lines();
    let at = |at: usize, page| List { api_version: "v1", kind: KINDS[at], page, compared: &Site };
    let second = Step::Lists(vec![at(2, 1), at(0, 1), at(3, 0), at(1, 1)]);
    let pages = pages_of(executor.carry_out(&second, LONG).await.unwrap());
    let more: Vec<bool> = pages.iter().map(|page| page.as_ref().unwrap().more).collect();
    assert_eq!(more, [false, false, true, false]);
    let mut lines = server.lines();
    lines.sort();
    let query = "limit=500&labelSelector=hive%2Eopenshift%2Eio%2Fmanaged%3Dtrue";
    let expected = [
        format!("GET /api/v1/configmaps?{query}&continue=after%2D0"),
        format!("GET /api/v1/pods?{query}"),
        format!("GET /api/v1/secrets?{query}&continue=after%2D1"),
        format!("GET /api/v1/services?{query}&continue=after%2D2"),
    ];
    assert_eq!(lines, expected);
}

/// So that four lists that are read at once have no more in memory than one that is read alone.
#[tokio::test]
async fn a_list_with_an_object_of_more_than_a_mebibyte_is_refused_and_the_others_are_not() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    let mut executor = answering(&mut client, &fence, &server).await;
    server.answer(|line| match position(line) {
        1 => {
            let mut object = metadata();
            object["metadata"]["annotations"] = json!({"a": "a".repeat(1 << 20)});
            whole(200, &json!({"metadata": {}, "items": [object]}))
        }
        at => page(at),
    });
    let pages = pages_of(executor.carry_out(&lists(&KINDS), LONG).await.unwrap());
    assert_eq!(uids(&pages), [found(0), Err(Refusal::Server), found(2), found(3)]);
}
