//! The messages of `proto/`, as generated.

/// Of Spark Connect.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::indexing_slicing, clippy::unwrap_used)]
pub mod spark {
    tonic::include_proto!("spark.connect");
}

/// Of errors.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod rpc {
    tonic::include_proto!("google.rpc");
}
