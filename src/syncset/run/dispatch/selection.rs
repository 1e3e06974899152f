//! Which clusters a syncset is for, as a condition of a statement. All values are parameters.

use crate::documents::{Parameters, label_condition};
use crate::syncset::plan::matching::Audience;

/// The condition on `c`, a row of the clusters. It has no more parameters than the audience's weight.
pub(in crate::syncset) fn condition(audience: &Audience, parameters: &mut Parameters) -> String {
    let mut text = "c.kind = 'clusters'".to_owned();
    match audience {
        Audience::Named { namespace, clusters } => {
            let names = parameters.texts(Some(clusters.iter().cloned().collect()));
            let of_namespace = format!(" and c.namespace = {} and c.name = any({names})", parameters.text(namespace));
            text.push_str(&of_namespace);
        }
        Audience::Selected { namespaces, requirements } => {
            for requirement in requirements {
                text.push_str(" and ");
                text.push_str(&label_condition(requirement, "c", parameters));
            }
            if !namespaces.iter().any(|pattern| pattern.is_prefix && pattern.text.is_empty()) {
                let of = |is_prefix| {
                    let patterns = namespaces.iter().filter(|pattern| pattern.is_prefix == is_prefix);
                    Some(patterns.map(|pattern| pattern.text.clone()).collect())
                };
                let (names, prefixes) = (parameters.texts(of(false)), parameters.texts(of(true)));
                let of_namespaces = format!(
                    " and (c.namespace = any({names}) or exists ( \
                       select from unnest({prefixes}::text[]) p where starts_with(c.namespace, p)))"
                );
                text.push_str(&of_namespaces);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn condition_of(selector: &Value, namespaces: &Value) -> (String, usize) {
        let mut parameters = Parameters::default();
        let audience = Audience::selected(Some(selector), Some(namespaces)).expect("an audience");
        let text = condition(&audience, &mut parameters);
        (text, parameters.as_params().len())
    }

    #[test]
    fn each_requirement_becomes_a_condition_whose_values_are_parameters() {
        let selector = json!({"matchLabels": {"zzk": "zzv"}, "matchExpressions": [
            {"key": "zza", "operator": "NotIn", "values": ["zzb"]}, {"key": "zzc", "operator": "Exists"},
            {"key": "zzd", "operator": "DoesNotExist"}, {"key": "zze", "operator": "In", "values": ["zzf", "zzg"]}]});
        let (text, parameters) = condition_of(&selector, &json!(["zzteam-*", "zzx"]));
        assert!(!text.contains("zz"), "{text}");
        assert_eq!((parameters, text.matches(" and ").count()), (7, 6));
    }

    #[test]
    fn the_empty_selector_and_all_namespaces_are_no_condition() {
        for (selector, namespaces) in [
            (json!({}), json!(["*"])),
            (json!({}), json!(null)),
            (json!({"matchLabels": null, "matchExpressions": []}), json!(["a", "*"])),
        ] {
            assert_eq!(condition_of(&selector, &namespaces), ("c.kind = 'clusters'".to_owned(), 0));
        }
    }
}
