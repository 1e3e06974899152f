//! Reading kubeconfigs in YAML's meaning to Kubernetes. kube's own functions take any scalar for a string, where kubectl refuses it.

use std::path::{MAIN_SEPARATOR, Path};

use kube::config::{Kubeconfig, KubeconfigError};

use super::{LoadError, full_text};
use crate::yaml;

/// The most bytes that are built of one, about.
const MOST_BUILT: usize = 64 << 20;

/// Why a text is no kubeconfig. It shows no value.
#[derive(Debug, thiserror::Error)]
pub enum NotAKubeconfig {
    #[error("not a kubeconfig: {0}")]
    Unreadable(#[from] yaml::Error),
    #[error("{}", full_text(.0))]
    Documents(KubeconfigError),
}

/// The kubeconfig in a text. Several documents are merged; of several equal names the first one counts.
pub fn kubeconfig_of(text: &str) -> Result<Kubeconfig, NotAKubeconfig> {
    let documents: Vec<Kubeconfig> = yaml::all(text, MOST_BUILT)?;
    documents.into_iter().try_fold(Kubeconfig::default(), Kubeconfig::merge).map_err(NotAKubeconfig::Documents)
}

/// Reads a file. What it refers to by relative paths is next to it.
pub(super) async fn read(path: &Path) -> Result<Kubeconfig, LoadError> {
    let failed = |reason: String| LoadError::Kubeconfig { path: path.display().to_string(), reason };
    let text = tokio::fs::read_to_string(path).await.map_err(|source| failed(source.to_string()))?;
    if text.trim().is_empty() {
        return Err(failed("the file is empty".into()));
    }
    let mut kubeconfig = kubeconfig_of(&text).map_err(|error| failed(error.to_string()))?;
    let directory = path.parent().unwrap_or(Path::new(""));
    for file in files(&mut kubeconfig) {
        // An absolute path replaces the directory.
        if let Some(joined) = directory.join(&*file).to_str() {
            joined.clone_into(file);
        }
    }
    Ok(kubeconfig)
}

/// The paths of files in a kubeconfig. A command without a separator is no path: it is looked for in `PATH`.
fn files(kubeconfig: &mut Kubeconfig) -> impl Iterator<Item = &mut String> {
    let clusters = kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut());
    let users = kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut());
    let of_users = users.flat_map(|user| {
        let command = user.exec.as_mut().and_then(|exec| exec.command.as_mut());
        let command = command.filter(|command| command.contains(MAIN_SEPARATOR));
        [user.client_certificate.as_mut(), user.client_key.as_mut(), user.token_file.as_mut(), command]
    });
    clusters.map(|cluster| cluster.certificate_authority.as_mut()).chain(of_users).flatten()
}
