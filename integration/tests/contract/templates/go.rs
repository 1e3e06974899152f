//! What Go makes of templates and YAML.

use std::process::Stdio;

use integration::programs;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The labels that all templates are rendered with.
pub(crate) const LABELS: [(&str, &str); 4] = [("region", "eu-west"), ("env", "prod"), ("empty", ""), ("n", "7")];

/// What Go makes of a text, as `integration/templates` writes it.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) text: Option<String>,
    pub(crate) parsed: bool,
    #[serde(default)]
    pub(crate) error: String,
}

/// Has Go render templates.
pub(crate) async fn answers(templates: &[String]) -> Vec<Answer> {
    let labels: serde_json::Map<_, _> = LABELS.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    asked(templates.iter().map(|template| json!({"template": template, "labels": labels})).collect()).await
}

/// Has the decoder of kubectl turn documents into JSON.
pub(crate) async fn of_yaml(texts: &[String]) -> Vec<Answer> {
    asked(texts.iter().map(|text| json!({"yaml": text})).collect()).await
}

async fn asked(questions: Vec<Value>) -> Vec<Answer> {
    let count = questions.len();
    let lines: Vec<String> = questions.into_iter().map(|question| format!("{question}\n")).collect();
    let program = programs::templates().await.expect("the renderer of templates");
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the renderer starts");
    let mut stdin = child.stdin.take().expect("its input");
    let writing = tokio::spawn(async move { stdin.write_all(lines.concat().as_bytes()).await });
    let output = child.wait_with_output().await.expect("the renderer ends");
    writing.await.expect("no panic").expect("it reads everything");
    assert!(output.status.success(), "{}", output.status);
    let answers = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Answer>();
    let answers: Vec<Answer> = answers.collect::<Result<_, _>>().expect("answers");
    assert_eq!(answers.len(), count);
    answers
}
