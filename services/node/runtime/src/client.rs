//! The CRI client: one cheap, cloneable handle, one method per call, one kind of error.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use crate::cri::image_service_client::ImageServiceClient;
use crate::cri::runtime_service_client::RuntimeServiceClient;
use crate::cri::*;

/// A call that is not back by then is given up; what upstream's kubelet allows by default.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A pull moves a whole image.
const PULL_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Lists grow with the number of containers on a node; 110 pods come to far less than this.
const MESSAGE_BYTES: usize = 16 << 20;

/// What a runtime answered instead of a result.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call}: {message}")]
pub struct CriError {
    pub call: &'static str,
    pub code: Code,
    pub message: String,
}

impl CriError {
    /// The sandbox, container or image is gone: for a removal this is success.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound || self.message.contains("not found")
    }
    /// The runtime is too old for this call.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }
    /// The runtime itself is away (being restarted): ask again soon.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.code, Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded)
    }
}

/// A runtime behind a Unix socket. Clones share one connection, which dials again by itself.
#[derive(Debug, Clone)]
pub struct Cri {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

/// `call!(self.runtime, list_containers, message, timeout)`: one call with a deadline and a named error.
macro_rules! call {
    ($client:expr, $name:ident, $message:expr, $timeout:expr) => {{
        let timeout = $timeout;
        let mut client = $client.clone();
        let call = client.$name(request($message, timeout));
        // The server is asked to keep the deadline; a runtime that hangs does not.
        match tokio::time::timeout(timeout + Duration::from_secs(5), call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(CriError {
                call: stringify!($name),
                code: status.code(),
                message: status.message().to_owned(),
            }),
            Err(_) => Err(CriError {
                call: stringify!($name),
                code: Code::DeadlineExceeded,
                message: format!("no answer within {} s", timeout.as_secs()),
            }),
        }
    }};
}

impl Cri {
    /// A client of the runtime at `socket`. Dials at the first call, and again whenever the runtime was away.
    pub fn connect(socket: &Path) -> Result<Cri, CriError> {
        let endpoint =
            Endpoint::try_from(format!("unix://{}", socket.display())).map_err(|cause| CriError {
                call: "connect",
                code: Code::InvalidArgument,
                message: format!("{} is no socket path: {cause}", socket.display()),
            })?;
        let channel = endpoint.connect_timeout(Duration::from_secs(5)).connect_lazy();
        Ok(Cri {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES),
            images: ImageServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES),
        })
    }

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<VersionResponse, CriError> {
        call!(self.runtime, version, VersionRequest { version: "v1".to_owned() }, Duration::from_secs(10))
    }

    /// The runtime's own conditions: `RuntimeReady` and `NetworkReady`.
    pub async fn status(&self) -> Result<Vec<RuntimeCondition>, CriError> {
        let answer = call!(self.runtime, status, StatusRequest { verbose: false }, Duration::from_secs(10))?;
        Ok(answer.status.map(|status| status.conditions).unwrap_or_default())
    }

    /// Makes a pod's namespaces and network; gives the sandbox's id.
    pub async fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Result<String, CriError> {
        let message = RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        Ok(call!(self.runtime, run_pod_sandbox, message, CALL_TIMEOUT * 2)?.pod_sandbox_id)
    }

    /// Kills what still runs in the sandbox and gives its network back. Repeating it is harmless.
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let message = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(call!(self.runtime, stop_pod_sandbox, message, CALL_TIMEOUT).map(drop))
    }

    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let message = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(call!(self.runtime, remove_pod_sandbox, message, CALL_TIMEOUT).map(drop))
    }

    pub async fn pod_sandbox_status(&self, id: &str) -> Result<PodSandboxStatus, CriError> {
        let message = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let answer = call!(self.runtime, pod_sandbox_status, message, CALL_TIMEOUT)?;
        answer.status.ok_or_else(|| empty("pod_sandbox_status"))
    }

    /// All sandboxes whose labels contain `labels`.
    pub async fn list_pod_sandboxes(
        &self,
        labels: HashMap<String, String>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let filter = PodSandboxFilter { id: String::new(), state: None, label_selector: labels };
        let message = ListPodSandboxRequest { filter: Some(filter) };
        Ok(call!(self.runtime, list_pod_sandbox, message, CALL_TIMEOUT)?.items)
    }

    /// Makes a container in a sandbox without starting it; gives its id.
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, CriError> {
        let message = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(call!(self.runtime, create_container, message, CALL_TIMEOUT)?.container_id)
    }

    pub async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let message = StartContainerRequest { container_id: id.to_owned() };
        call!(self.runtime, start_container, message, CALL_TIMEOUT).map(drop)
    }

    /// Sends the stop signal and, `grace_s` later, the kill. Returns when the container has ended.
    pub async fn stop_container(&self, id: &str, grace_s: i64) -> Result<(), CriError> {
        let message = StopContainerRequest { container_id: id.to_owned(), timeout: grace_s };
        let patience = CALL_TIMEOUT + Duration::from_secs(grace_s.max(0).unsigned_abs());
        gone_is_fine(call!(self.runtime, stop_container, message, patience).map(drop))
    }

    pub async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let message = RemoveContainerRequest { container_id: id.to_owned() };
        gone_is_fine(call!(self.runtime, remove_container, message, CALL_TIMEOUT).map(drop))
    }

    /// All containers whose labels contain `labels`.
    pub async fn list_containers(&self, labels: HashMap<String, String>) -> Result<Vec<Container>, CriError> {
        let filter = ContainerFilter { label_selector: labels, ..ContainerFilter::default() };
        let message = ListContainersRequest { filter: Some(filter) };
        Ok(call!(self.runtime, list_containers, message, CALL_TIMEOUT)?.containers)
    }

    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        let message = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer = call!(self.runtime, container_status, message, CALL_TIMEOUT)?;
        answer.status.ok_or_else(|| empty("container_status"))
    }

    pub async fn update_container_resources(
        &self,
        id: &str,
        linux: LinuxContainerResources,
    ) -> Result<(), CriError> {
        let message = UpdateContainerResourcesRequest { container_id: id.to_owned(), linux: Some(linux) };
        call!(self.runtime, update_container_resources, message, CALL_TIMEOUT).map(drop)
    }

    /// The log file was moved away: the runtime opens a new one at the old path.
    pub async fn reopen_container_log(&self, id: &str) -> Result<(), CriError> {
        let message = ReopenContainerLogRequest { container_id: id.to_owned() };
        call!(self.runtime, reopen_container_log, message, CALL_TIMEOUT).map(drop)
    }

    /// Runs `cmd` in a container and collects what it printed; the runtime kills it after `timeout`.
    pub async fn exec_sync(
        &self,
        id: &str,
        cmd: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecSyncResponse, CriError> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX).max(1);
        let message = ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: seconds };
        call!(self.runtime, exec_sync, message, timeout + Duration::from_secs(10))
    }

    /// A one-time URL of the runtime's streaming server for an exec.
    pub async fn exec(&self, request: ExecRequest) -> Result<String, CriError> {
        Ok(call!(self.runtime, exec, request, CALL_TIMEOUT)?.url)
    }

    /// A one-time URL of the runtime's streaming server for an attach.
    pub async fn attach(&self, request: AttachRequest) -> Result<String, CriError> {
        Ok(call!(self.runtime, attach, request, CALL_TIMEOUT)?.url)
    }

    /// A one-time URL of the runtime's streaming server for a port-forward.
    pub async fn port_forward(&self, request: PortForwardRequest) -> Result<String, CriError> {
        Ok(call!(self.runtime, port_forward, request, CALL_TIMEOUT)?.url)
    }

    pub async fn list_container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        let message = ListContainerStatsRequest { filter: None };
        Ok(call!(self.runtime, list_container_stats, message, CALL_TIMEOUT)?.stats)
    }

    pub async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        Ok(call!(self.images, list_images, ListImagesRequest { filter: None }, CALL_TIMEOUT)?.images)
    }

    /// The image of that name or id, if the node has it.
    pub async fn image_status(&self, image: &str) -> Result<Option<Image>, CriError> {
        let message = ImageStatusRequest { image: Some(spec(image)), verbose: false };
        Ok(call!(self.images, image_status, message, CALL_TIMEOUT)?.image)
    }

    /// Fetches an image from its registry; gives the reference to start containers from.
    pub async fn pull_image(&self, image: &str, auth: Option<AuthConfig>) -> Result<String, CriError> {
        let message = PullImageRequest { image: Some(spec(image)), auth, sandbox_config: None };
        Ok(call!(self.images, pull_image, message, PULL_TIMEOUT)?.image_ref)
    }

    pub async fn remove_image(&self, image: &str) -> Result<(), CriError> {
        let message = RemoveImageRequest { image: Some(spec(image)) };
        gone_is_fine(call!(self.images, remove_image, message, CALL_TIMEOUT).map(drop))
    }

    pub async fn image_fs_info(&self) -> Result<Vec<FilesystemUsage>, CriError> {
        Ok(call!(self.images, image_fs_info, ImageFsInfoRequest {}, CALL_TIMEOUT)?.image_filesystems)
    }
}

fn spec(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_owned(), ..ImageSpec::default() }
}

fn empty(call: &'static str) -> CriError {
    CriError { call, code: Code::Internal, message: "the answer is empty".to_owned() }
}

fn gone_is_fine(answer: Result<(), CriError>) -> Result<(), CriError> {
    match answer {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
