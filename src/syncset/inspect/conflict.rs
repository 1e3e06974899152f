//! Which fields belong to whom, from the message of an apply that was refused. Pure.

use crate::cluster::shown_manager;

/// What the message of a 409 says: each manager with its fields that the apply would take. The message may have lost its line breaks.
pub(super) fn conflicts(message: &str) -> Vec<(String, Vec<String>)> {
    // Apply failed with 2 conflicts: conflict with "hpa" using apps/v1: .spec.replicas
    // conflicts with "kubectl" with subresource "scale" using v1 at 2026-11-23T10:00:00Z:
    // - .data.a
    // - .data.b
    let message = message.replace('\n', " ");
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let parts = message.split("conflict with \"").flat_map(|part| part.split("conflicts with \""));
    for part in parts.skip(1) {
        let Some((manager, rest)) = part.split_once('"') else { continue };
        let Some((by, fields)) = rest.split_once(": ") else { continue };
        let subresource = by.strip_prefix(" with subresource \"").and_then(|by| by.split_once('"'));
        let manager = shown_manager(manager, subresource.map_or("", |(subresource, _)| subresource));
        let fields = fields.trim().strip_prefix("- ").unwrap_or(fields.trim());
        let fields: Vec<String> = fields.split(" - ").map(|field| field.trim().to_owned()).collect();
        match found.iter_mut().find(|(known, _)| *known == manager) {
            Some((_, known)) => known.extend(fields),
            None => found.push((manager, fields)),
        }
    }
    found
}

/// Fields with who they belong to, in words.
pub(super) fn told(fields: &[String], manager: &str) -> String {
    let verb = if fields.len() == 1 { "belongs" } else { "belong" };
    format!("{} {verb} to {manager}", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_apply_names_each_manager_with_its_fields() {
        let one = r#"Apply failed with 1 conflict: conflict with "hpa" with subresource "scale" using apps/v1: .spec.replicas"#;
        assert_eq!(conflicts(one), [("hpa by /scale".to_owned(), vec![".spec.replicas".to_owned()])]);
        let many = "Apply failed with 3 conflicts: conflict with \"hpa\" using v1: .data.c\nconflicts with \"kubectl-edit\" using v1 \
                    at 2026-11-23T10:00:00Z:\n- .data.a\n- .spec.containers[name=\"x\"].image";
        let expected = [
            ("hpa".to_owned(), vec![".data.c".to_owned()]),
            ("kubectl-edit".to_owned(), vec![".data.a".to_owned(), ".spec.containers[name=\"x\"].image".to_owned()]),
        ];
        assert_eq!(conflicts(many), expected);
        assert_eq!(conflicts(&many.replace('\n', " ")), expected, "without line breaks");
        assert_eq!(conflicts("the object has been modified"), []);
    }

    #[test]
    fn one_field_belongs_and_two_belong_to_a_manager() {
        let fields = [".a".to_owned(), ".b".to_owned()];
        assert_eq!(told(&fields, "hpa"), ".a, .b belong to hpa");
        assert_eq!(told(&fields[..1], "hpa"), ".a belongs to hpa");
    }
}
