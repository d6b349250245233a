#!/bin/bash
# Installs or upgrades Hairpin in the cluster of KUBECONFIG, and waits until every node is ready and
# healthy:
#
#   charts/install.sh IMAGE [HELM ARGUMENT…]
#
# IMAGE is the image's repository and tag. Without an argument for it, the tag of Open vSwitch's
# image is that of dist/hairpin-image.tar, which `make image-oci` wrote with IMAGE. Without a value
# for it, the address of the API server is that of kube-public/cluster-info, which kubeadm writes;
# else that of the kubeconfig; else, if that is a loopback address, the first endpoint of
# default/kubernetes.
set -euo pipefail
cd "$(dirname "$0")/.."
image=$1
shift
ovs=$(charts/ovs-tag.sh "$image")
kubectl version >/dev/null || {
	echo "install: kubectl does not reach a cluster (KUBECONFIG=${KUBECONFIG:-})" >&2
	exit 1
}

server=()
case " $* " in
*apiServer.host=*) ;;
*)
	if ! kubectl --namespace kube-public get configmap cluster-info >/dev/null 2>&1; then
		url=$(kubectl config view --minify --output 'jsonpath={.clusters[0].cluster.server}')
		authority=${url#*://} && authority=${authority%%/*}
		host=${authority%:*} port=${authority##*:}
		[ "$authority" != "$host" ] || port=443
		host=${host#[} && host=${host%]}
		case $host in
		127.* | ::1 | localhost)
			at='jsonpath={.items[0].endpoints[0].addresses[0]} {.items[0].ports[0].port}'
			read -r host port < <(kubectl get endpointslices \
				--selector kubernetes.io/service-name=kubernetes --output "$at" && echo)
			;;
		esac
		echo "install: nodes reach the API server at $host, port $port"
		server=(--set "apiServer.host=$host" --set "apiServer.port=$port")
	fi
	;;
esac
# Helm installs CustomResourceDefinitions only at the first installation, and never changes them.
bin/helm show crds charts/hairpin | kubectl apply --server-side --force-conflicts --filename -
# shellcheck disable=SC2086 # $ovs is two words, or none
bin/helm upgrade --install hairpin charts/hairpin --namespace hairpin --create-namespace \
	$ovs --set image.repository="${image%:*}" --set image.tag="${image##*:}" "${server[@]}" "$@"
for set in ovs node; do
	kubectl --namespace hairpin rollout status "daemonset/hairpin-$set" --timeout 10m
done
kubectl wait --for=condition=Ready nodes --all --timeout 5m
bin/hairpin status --kubeconfig "${KUBECONFIG:-$HOME/.kube/config}" --wait
