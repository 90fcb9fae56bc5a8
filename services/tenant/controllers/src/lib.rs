//! The loops of kube-controller-manager.
