#!/bin/bash
# Prints the manifest of the kubectl plugin for krew
# (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/):
#
#   image/krew.sh VERSION URL ARCHIVE…
#
# URL is where users find the archives, which are kubectl-hairpin-linux-ARCHITECTURE.tar.gz.
set -euo pipefail
version=$1 url=$2
shift 2
cat <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata: {name: hairpin}
spec:
  version: $version
  shortDescription: Explain packets, test and check the Hairpin network
  description: |
    Shows the health of every node of a cluster with the network plugin Hairpin, follows packets
    through every table, tests every path, and checks nodes before an installation.
  platforms:
YAML
for archive; do
	file=$(basename "$archive")
	arch=${file#kubectl-hairpin-linux-}
	cat <<YAML
  - selector: {matchLabels: {os: linux, arch: ${arch%.tar.gz}}}
    uri: $url/$file
    sha256: $(sha256sum "$archive" | cut -d' ' -f1)
    bin: kubectl-hairpin
YAML
done
