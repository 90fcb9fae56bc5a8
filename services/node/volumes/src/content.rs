//! The files of configMap, secret, downwardAPI and projected volumes.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccountTokenProjection, Volume,
    VolumeProjection,
};

use crate::atomic::{File, Files};
use crate::downward;
use crate::sources::{Sources, TokenWanted};

/// A service-account token lives an hour unless the pod asks otherwise, and ten minutes at least.
const TOKEN_LIFETIME_S: i64 = 3600;
const TOKEN_LIFETIME_MIN_S: i64 = 600;

/// Modes when the document says none.
const DEFAULT_MODE: i32 = 0o644;

/// The files of a volume; `None` when it is not of a kind that has content from the cluster.
pub(crate) async fn files(
    pod: &Pod,
    volume: &Volume,
    sources: &dyn Sources,
) -> Result<Option<Files>, String> {
    let mut files = Files::new();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(source) = &volume.config_map {
        let optional = source.optional.unwrap_or(false);
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let values = config_map(sources, namespace, &source.name, optional).await?;
        pick(&mut files, values, source.items.as_deref(), mode, optional, MISSING_CONFIG_KEY)?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let optional = source.optional.unwrap_or(false);
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let values = secret(sources, namespace, name, optional).await?;
        pick(&mut files, values, source.items.as_deref(), mode, optional, MISSING_SECRET_KEY)?;
    } else if let Some(source) = &volume.downward_api {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        downward(&mut files, pod, source.items.as_deref().unwrap_or_default(), mode, sources)?;
    } else if let Some(source) = &volume.projected {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        for projection in source.sources.as_deref().unwrap_or_default() {
            projected(&mut files, pod, projection, mode, sources).await?;
        }
    } else {
        return Ok(None);
    }
    Ok(Some(files))
}

async fn projected(
    files: &mut Files,
    pod: &Pod,
    projection: &VolumeProjection,
    mode: i32,
    sources: &dyn Sources,
) -> Result<(), String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(source) = &projection.config_map {
        let optional = source.optional.unwrap_or(false);
        let values = config_map(sources, namespace, &source.name, optional).await?;
        pick(files, values, source.items.as_deref(), mode, optional, MISSING_CONFIG_KEY)
    } else if let Some(source) = &projection.secret {
        let optional = source.optional.unwrap_or(false);
        let values = secret(sources, namespace, &source.name, optional).await?;
        pick(files, values, source.items.as_deref(), mode, optional, MISSING_SECRET_KEY)
    } else if let Some(source) = &projection.downward_api {
        downward(files, pod, source.items.as_deref().unwrap_or_default(), mode, sources)
    } else if let Some(source) = &projection.service_account_token {
        token(files, pod, source, mode, sources).await
    } else {
        Err("a projected source of this kind is not supported on this node".to_owned())
    }
}

async fn token(
    files: &mut Files,
    pod: &Pod,
    source: &ServiceAccountTokenProjection,
    mode: i32,
    sources: &dyn Sources,
) -> Result<(), String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let account = spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
    let wanted = TokenWanted {
        namespace: meta.namespace.clone().unwrap_or_default(),
        service_account: if account.is_empty() { "default" } else { account }.to_owned(),
        pod_name: meta.name.clone().unwrap_or_default(),
        pod_uid: meta.uid.clone().unwrap_or_default(),
        audience: source.audience.clone().filter(|audience| !audience.is_empty()),
        lifetime_s: source.expiration_seconds.unwrap_or(TOKEN_LIFETIME_S).max(TOKEN_LIFETIME_MIN_S),
    };
    let token = sources.token(&wanted).await?;
    // A token is for the pod's user alone when that can be said; else every user of the pod must be able to read it.
    let uid = common_user(pod);
    let fs_group = spec.and_then(|spec| spec.security_context.as_ref()?.fs_group);
    let mode = if uid.is_some() || fs_group.is_some() { 0o600 } else { mode_bits(mode) };
    files.insert(source.path.clone(), File { data: token.token.into_bytes(), mode, uid });
    Ok(())
}

/// The user that all containers of the pod run as, if the document says so.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let default = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let users =
        containers.map(|one| one.security_context.as_ref().and_then(|own| own.run_as_user).or(default));
    let mut users: Vec<Option<i64>> = users.collect();
    users.dedup();
    match users.as_slice() {
        [Some(user)] => u32::try_from(*user).ok(),
        _ => None,
    }
}

/// A key that is wanted and not there, in upstream's words.
const MISSING_CONFIG_KEY: &str = "configmap references non-existent config key";
const MISSING_SECRET_KEY: &str = "references non-existent secret key";

type Values = Option<BTreeMap<String, Vec<u8>>>;

async fn config_map(
    sources: &dyn Sources,
    namespace: &str,
    name: &str,
    optional: bool,
) -> Result<Values, String> {
    match sources.config_map(namespace, name).await? {
        Some(found) => Ok(Some(config_map_values(found))),
        None if optional => Ok(None),
        None => Err(format!("configmap \"{name}\" not found")),
    }
}

async fn secret(
    sources: &dyn Sources,
    namespace: &str,
    name: &str,
    optional: bool,
) -> Result<Values, String> {
    match sources.secret(namespace, name).await? {
        Some(found) => Ok(Some(secret_values(found))),
        None if optional => Ok(None),
        None => Err(format!("secret \"{name}\" not found")),
    }
}

fn config_map_values(found: ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = found.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
    let binary = found.binary_data.into_iter().flatten().map(|(key, ByteString(value))| (key, value));
    text.chain(binary).collect()
}

fn secret_values(found: Secret) -> BTreeMap<String, Vec<u8>> {
    found.data.into_iter().flatten().map(|(key, ByteString(value))| (key, value)).collect()
}

/// Adds all values, or the chosen ones under their own paths.
fn pick(
    files: &mut Files,
    values: Values,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
    missing: &str,
) -> Result<(), String> {
    let Some(values) = values else { return Ok(()) };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let plain = |(key, data)| (key, File { data, mode: mode_bits(mode), uid: None });
        files.extend(values.into_iter().map(plain));
        return Ok(());
    };
    for item in items {
        match values.get(&item.key) {
            Some(data) => {
                let mode = mode_bits(item.mode.unwrap_or(mode));
                files.insert(item.path.clone(), File { data: data.clone(), mode, uid: None });
            }
            None if optional => {}
            None => return Err(format!("{missing}: {}", item.key)),
        }
    }
    Ok(())
}

fn downward(
    files: &mut Files,
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    mode: i32,
    sources: &dyn Sources,
) -> Result<(), String> {
    for item in items {
        let data = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(pod, &field.field_path, None)?,
            (None, Some(resource)) => downward::resource(pod, None, resource, &sources.allocatable())?,
            (None, None) => return Err(format!("{}: neither fieldRef nor resourceFieldRef", item.path)),
        };
        let mode = mode_bits(item.mode.unwrap_or(mode));
        files.insert(item.path.clone(), File { data: data.into_bytes(), mode, uid: None });
    }
    Ok(())
}

fn mode_bits(mode: i32) -> u32 {
    mode.unsigned_abs() & 0o777
}
