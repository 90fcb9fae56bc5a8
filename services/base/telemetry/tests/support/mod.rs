//! An OTLP trace receiver on a loopback port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span and the attributes of the process it is from.
pub struct Received {
    pub resource: Vec<KeyValue>,
    pub span: Span,
}

#[derive(Clone)]
pub struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Collector {
    pub async fn start() -> Collector {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let collector = Collector { address: listener.local_addr().unwrap(), received: Arc::default() };
        let service = TraceServiceServer::new(collector.clone());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        collector
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What arrived since the last call.
    pub fn take(&self) -> Vec<Received> {
        std::mem::take(&mut *self.received.lock().unwrap())
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut received = self.received.lock().unwrap();
        for of_process in request.into_inner().resource_spans {
            let resource = of_process.resource.map(|resource| resource.attributes).unwrap_or_default();
            for span in of_process.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                received.push(Received { resource: resource.clone(), span });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// An attribute's value as text.
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}
