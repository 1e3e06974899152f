//! Two local clusters with the same finalizer, of which one was renamed.

use serde_json::{Value, json};

use super::elsewhere::{HOLDER, SOURCE, below, held_by, note_of, noted, on};
use super::{FINALIZER, Scene, object, terminating};
use crate::cluster::Written;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::Observed;
use crate::resource_sync::plan::renewal::RenewedObject;
use crate::resource_sync::plan::step::Contended;
use crate::resource_sync::plan::step::{Next, Rest, Step};

/// A finalizer that the section had before, or that another section has.
const FORMER: &str = "cloud.teleport.dev/sync-former";

/// A remote object with these finalizers and a note about one cluster, for a section that was renamed.
fn renamed(cluster: &str, finalizers: &[&str], keys: &str) -> Scene {
    let mut scene = held_by(cluster);
    scene.policy = super::policy(&format!("former_finalizers = [\"sync-former\"]\n{keys}"));
    scene.remote["metadata"]["finalizers"] = json!(finalizers);
    scene
}

/// Carries out steps until nothing is left to do.
fn play(
    mut observed: Observed,
    scene: &Scene,
    next: impl Fn(&Observed) -> Next,
) -> (Vec<&'static str>, Observed, Rest) {
    let mut steps = Vec::new();
    loop {
        match next(&observed) {
            Next::Do(step) => {
                steps.push(step.name());
                assert!(steps.len() < 8, "{steps:?}");
                observed = observed.after(&step, &Written::default(), &scene.policy);
                if step == Step::DeleteLocal {
                    observed.local = None;
                }
            }
            Next::Rest(rest) => return (steps, observed, rest),
            other => panic!("{other:?} after {steps:?}"),
        }
    }
}

fn has(observed: &Observed, finalizer: &str) -> bool {
    observed.remote_object().is_some_and(|remote| remote.has_finalizer(finalizer))
}

#[test]
fn a_finalizer_of_a_former_name_beside_the_present_one_is_somebody_elses_to_the_end() {
    for is_noted in [true, false] {
        let mut scene = renamed("east", &[FINALIZER, FORMER], "");
        if !is_noted {
            scene.remote["metadata"]["annotations"].as_object_mut().expect("annotations").remove(HOLDER);
        }
        let next = |observed: &Observed| next::next(observed, &scene.policy);
        assert_eq!(next(&on("east", &scene)), Next::Rest(Rest::InStep));
        let mut ending = scene.clone();
        terminating(&mut ending.remote);
        let (steps, after, rest) = play(on("east", &ending), &ending, next);
        assert_eq!((steps, rest), (vec!["delete_local", "remove_finalizer"], Rest::Gone), "{is_noted}");
        assert!(has(&after, FORMER) && noted(&after) == Some(&*note_of("east")));
        let detach = |observed: &Observed| next::detach(observed, &scene.policy, true);
        let (steps, after, _) = play(on("east", &scene), &scene, detach);
        assert!(steps == ["remove_finalizer"] && has(&after, FORMER), "{steps:?}");
        // When it is selected again, it gets the present finalizer, and the other one stays.
        let Next::Do(step) = next(&after) else { panic!("a finalizer") };
        assert_eq!(step, Step::AddFinalizer);
        let again = after.after(&step, &Written::default(), &scene.policy);
        assert!(has(&again, FORMER) && has(&again, FINALIZER));
    }
    // Without a note the name alone decides.
    let mut silent = renamed("east", &[FORMER], "write_back = false");
    silent.remote["metadata"]["annotations"].as_object_mut().expect("annotations").remove(HOLDER);
    terminating(&mut silent.remote);
    let (steps, _, _) = play(on("east", &silent), &silent, |observed: &Observed| next::next(observed, &silent.policy));
    assert_eq!(steps, ["delete_local", "remove_finalizer"]);
    // Alone it is ours. If it is added again after the renewal, another section has added it.
    let before = renamed("east", &[FORMER], "");
    for note in [Some(format!("east/remote-uid/{FORMER}")), None] {
        let mut before = before.clone();
        let annotations = before.remote["metadata"]["annotations"].as_object_mut().expect("annotations");
        annotations.remove(HOLDER);
        annotations.extend(note.map(|note| (HOLDER.to_owned(), json!(note))));
        let Next::Do(step @ Step::RenewMarks(_)) = next::next(&on("east", &before), &before.policy) else {
            panic!("a renewal")
        };
        let after = on("east", &before).after(&step, &Written::default(), &before.policy);
        assert_eq!(noted(&after), Some(&*note_of("east")));
        assert!(has(&after, FINALIZER) && !has(&after, FORMER));
    }
}

#[test]
fn another_clusters_note_beside_a_present_finalizer_says_nothing_of_it_and_stays() {
    // West still has the name that east had before, and has written the last note.
    let mut scene = renamed("west", &[FINALIZER, FORMER], "");
    let theirs = format!("west/remote-uid/{FORMER}");
    scene.remote["metadata"]["annotations"][HOLDER] = json!(theirs);
    scene.remote["spec"]["size"] = json!(7);
    let next = |observed: &Observed| next::next(observed, &scene.policy);
    let (steps, after, rest) = play(on("east", &scene), &scene, next);
    assert_eq!((steps[0], rest), ("patch_local", Rest::InStep));
    assert_eq!(noted(&after), Some(&*theirs));
    terminating(&mut scene.remote);
    let next = |observed: &Observed| next::next(observed, &scene.policy);
    let (steps, after, rest) = play(on("east", &scene), &scene, next);
    assert_eq!((steps, rest), (vec!["delete_local", "remove_finalizer"], Rest::OtherCluster));
    assert!(has(&after, FORMER) && noted(&after) == Some(&*theirs));
}

#[test]
fn a_note_is_not_written_before_the_present_finalizer_is_on() {
    let mut scene = renamed("east", &[FORMER], "");
    scene.remote["metadata"]["annotations"].as_object_mut().expect("annotations").remove(HOLDER);
    scene.remote["metadata"]["generation"] = json!(9);
    let mut observed = on("east", &scene);
    observed.contended.push(Contended::Marks(RenewedObject::Remote));
    let Next::Do(step @ Step::NoteGenerations { .. }) = next::next(&observed, &scene.policy) else { panic!("a note") };
    let after = observed.after(&step, &Written::default(), &scene.policy);
    assert_eq!(noted(&after), None);
    assert!(scene.policy.marks.holds(after.remote_object().expect("a remote object")));
    // The renewal also works on an object without annotations.
    let mut bare = renamed("east", &[FORMER], "");
    bare.remote["metadata"]["annotations"] = Value::Null;
    bare.local = Value::Null;
    let Next::Do(Step::RenewMarks(renewal)) = next::next(&on("east", &bare), &bare.policy) else { panic!("a renewal") };
    let patch = renewal.json_patch(&object(&bare.remote));
    assert_eq!(patch[2], json!({"op": "add", "path": "/metadata/annotations", "value": {HOLDER: note_of("east")}}));
}

#[test]
fn a_mirrored_object_keeps_no_source_of_an_earlier_setting() {
    let mut scene = Scene::mirrored("");
    scene.local["metadata"]["annotations"][SOURCE] = json!("north/remote-uid");
    let Next::Do(Step::PatchLocal(change)) = next::next(&below("north", &scene), &scene.policy) else {
        panic!("a change")
    };
    assert_eq!(change.annotations.get(SOURCE), Some(&None));
}
