//! The order of functions (`hack/order.ld`): the linker reads it, it names functions that there are, and every release build has it.

#![expect(clippy::expect_used, reason = "a test that can't read the sources has failed")]

use std::collections::HashSet;
use std::path::Path;

/// A file of the repository.
fn text(relative: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(relative);
    std::fs::read_to_string(&path).expect(relative)
}

/// Arguments of each release build of the daemon in a file.
fn release_builds(relative: &str) -> Vec<String> {
    let lines = text(relative).replace("\\\n", "");
    let builds = lines.split("hack/release.sh").skip(1).filter_map(|after| after.lines().next());
    builds.map(|arguments| arguments.trim().to_owned()).collect()
}

#[test]
fn the_demo_the_bench_and_the_image_are_built_by_one_recipe() {
    let makefile = text("Makefile");
    assert!(makefile.contains("\nORDER := hack/order.ld\n"));
    assert!(!makefile.contains("--release --locked --package towline"), "hack/release.sh builds it");
    assert_eq!(release_builds("Makefile"), ["$(ORDER)", "$(ORDER)"], "demo and bench");
    // Behind the sources' names, which are copied before, the rest of the lines is the step's end.
    assert_eq!(release_builds("Dockerfile"), ["hack/order.ld hack/", "hack/order.ld"], "copied and run");
}

/// The linker is that of every debug build, too. Where `hack/release.sh` hands it no script, there is nothing to test.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#[test]
fn the_linker_puts_listed_functions_into_a_section_of_their_own() {
    use std::process::Command;

    let folder = tempfile::tempdir().expect("a folder");
    // Its functions of the standard library are those of the daemon.
    let (source, program) = (folder.path().join("program.rs"), folder.path().join("program"));
    std::fs::write(&source, "fn main() { println!(\"{}\", 1); }").expect("a source");
    let has_section = |arguments: &[&str]| {
        let mut compiler = Command::new("rustc");
        compiler.current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).arg("-o").args([&program, &source]);
        assert!(compiler.status().expect("rustc").success(), "{compiler:?}");
        assert_eq!(Command::new(&program).output().expect("it runs").stdout, b"1\n");
        let content = std::fs::read(&program).expect("the program");
        content.split(|byte| *byte == 0).any(|name| name == b".text.ordered")
    };
    let script = format!("-Clink-arg=-T{}/hack/order.ld", env!("CARGO_MANIFEST_DIR"));
    assert!(!has_section(&[]));
    assert!(has_section(&[&script]));
}

/// Functions that have moved are no longer put together. Most names of generic functions have those of other crates in them, so
/// it is enough to look at those of this crate, which change most.
#[test]
fn listed_functions_of_the_crate_exist() {
    let listed: HashSet<Vec<u8>> = text("hack/order.ld").lines().filter_map(|line| name(line.as_bytes())).collect();
    assert!(listed.len() > 100, "{}", listed.len());
    let binary = std::fs::read(env!("CARGO_BIN_EXE_towline")).expect("the binary");
    let there: HashSet<Vec<u8>> = binary.split(|byte| *byte == 0).filter_map(name).collect();
    let gone: Vec<_> = listed.difference(&there).map(|name| String::from_utf8_lossy(name)).collect();
    assert!(gone.len() * 10 < listed.len(), "`make order` is due; of {} there are no more: {gone:#?}", listed.len());
}

/// The name of one of the crate's functions, without its hash.
fn name(symbol: &[u8]) -> Option<Vec<u8>> {
    let symbol = symbol.trim_ascii().strip_prefix(b".text*.").unwrap_or(symbol);
    let end = symbol.windows(3).position(|part| part == b"17h").filter(|_| symbol.starts_with(b"_ZN7towline"))?;
    symbol.get(..end).map(<[u8]>::to_vec)
}
