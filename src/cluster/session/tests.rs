//! How a probe treats connections that break and servers that do not answer.

use serde_json::json;

use super::*;

/// What a probe says of a server that answers in this order, and how many requests that took.
async fn probed(answers: &'static [u16]) -> (Result<(), Error>, usize) {
    let (cluster, script) = Cluster::scripted("west");
    let mut answers = answers.iter();
    script.answer(move |_| (*answers.next().unwrap(), json!({})));
    let session = cluster.sessions().borrow().clone().unwrap();
    let answer = once_more(|| session.connection.probe_as(None, PROBE_DEADLINE)).await;
    (answer, script.asked().len())
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_is_no_outage_but_two_are_and_so_is_silence() {
    assert!(matches!(probed(&[200]).await, (Ok(()), 1)));
    assert!(matches!(probed(&[1, 200]).await, (Ok(()), 2)));
    assert!(matches!(probed(&[1, 1]).await, (Err(Error::NoAnswer { .. }), 2)));
    assert!(matches!(probed(&[1, 401]).await, (Err(Error::Unauthorized { .. }), 2)));
    assert!(matches!(probed(&[0]).await, (Err(Error::NoAnswer { .. }), 1)), "its deadline has passed");
    assert!(matches!(probed(&[500]).await, (Err(Error::Server { .. }), 1)));
}
