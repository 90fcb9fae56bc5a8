# A cluster and a pool of machines for it, on the fleet that `cargo xtask up` runs:
#
#   terraform -chdir=terraform/examples/quickstart init
#   terraform -chdir=terraform/examples/quickstart apply
#   terraform -chdir=terraform/examples/quickstart output -raw kubeconfig > quickstart.kubeconfig
#
# Without a login of its own, the provider finds the fleet's in `.roadstead` above this folder.

terraform {
  required_providers {
    roadstead = {
      source = "roadstead.local/roadstead/roadstead"
    }
  }
}

provider "roadstead" {
  organization = "demo"
}

variable "machines" {
  description = "Machines in the pool; local ones need root on the fleet's machine."
  type        = number
  default     = 1
}

resource "roadstead_cluster" "quickstart" {
  name   = "quickstart"
  labels = { made-by = "terraform" }
}

resource "roadstead_node_pool" "workers" {
  cluster = roadstead_cluster.quickstart.id
  name    = "workers"
  size    = var.machines
}

resource "roadstead_kubeconfig" "quickstart" {
  cluster = roadstead_cluster.quickstart.id
}

output "kubeconfig" {
  description = "For a file that KUBECONFIG names."
  value       = roadstead_kubeconfig.quickstart.kubeconfig
  sensitive   = true
}
