#!/bin/bash
# Writes docs/start/first-hour.md from a real run on the cluster that `make cluster` left up: Hairpin is removed, installed, tested,
# upgraded, rolled back and removed again, with the commands that an administrator types. In the end it is installed, as before.
set -euo pipefail
cd "$(dirname "$0")/.."
export KUBECONFIG=/run/hairpin-lab/cluster/kubeconfig
tools=$(mktemp -d)
page=$tools/first-hour.md
trap 'rm -rf "$tools"' EXIT
root=$PWD
ln -s "$root/bin/hairpin" "$tools/kubectl-hairpin"
export PATH=$tools:$root/bin:$PATH COLUMNS=130

say() { printf '%s\n\n' "$*" | fold -s -w 100 | sed 's/ *$//' >>"$page"; }
# show COMMAND [FILTER] runs a command and writes what it printed, or of that what a filter leaves.
show() {
	echo "first-hour: $1" >&2
	# shellcheck disable=SC2016 # backquotes of the page
	{
		printf '```\n$ %s\n' "$1"
		bash -c "cd '$tools' && $1" 2>&1 | bash -c "${2:-cat}" | sed 's/[[:space:]]*$//; s/\x1b\[[0-9;]*m//g'
		printf '```\n\n'
	} >>"$page"
}
# file NAME writes a file from the standard input and shows it.
file() {
	cat >"$tools/$1"
	# shellcheck disable=SC2016
	{ printf '```yaml\n# %s\n' "$1"; cat "$tools/$1"; printf '```\n\n'; } >>"$page"
}
quiet() { "$@" >"$tools/quiet" 2>&1 || { cat "$tools/quiet" >&2; exit 1; }; }
# renew makes the pods again: those that were there have lost their network with Hairpin.
renew() {
	quiet kubectl delete pods --all --namespace kube-system
	quiet kubectl delete pods --all
	quiet kubectl rollout status deployment/coredns --namespace kube-system
	quiet kubectl rollout status deployment/web
	quiet kubectl rollout status daemonset/client
}
# event REASON OBJECT waits for an Event.
event() {
	for _ in $(seq 200); do
		kubectl get events --field-selector "reason=$1,involvedObject.name=$2" --no-headers 2>/dev/null | grep -q . && return
		sleep 0.1
	done
	echo "first-hour: no Event $1 of $2" >&2
	exit 1
}
cut="sed -n '1,8p; 9s/.*/…/p'"

# A chart as a release has it: it names its images, which are on the nodes.
charts/ovs-tag.sh hairpin:dev >"$tools/quiet"
ovs=$(sed -n 's/.*tag: "\(.*\)".*/\1/p' dist/openvswitch-image.yaml)
cp -r charts/hairpin "$tools/chart"
sed -i "0,/^  repository: \"\"$/s||  repository: hairpin|; 0,/^    tag: \"\"$/s||    tag: \"$ovs\"|; 0,/^  tag: \"\"$/s||  tag: dev|" "$tools/chart/values.yaml"
quiet helm package "$tools/chart" --destination "$tools"
chart=$(basename "$tools"/hairpin-*.tgz)
server=$(kubectl get endpointslices --selector kubernetes.io/service-name=kubernetes --output 'jsonpath={.items[0].endpoints[0].addresses[0]}')
mode=$(helm get values hairpin --namespace hairpin --output json | sed -n 's/.*"mode":"\([a-z]*\)".*/\1/p')
values="--set apiServer.host=$server"
[ "${mode:-shared}" = shared ] || values="$values --set config.gateway.mode=$mode"

# Before Hairpin.
bin/lab cluster import dist/hairpin-next-image.tar
quiet helm upgrade hairpin charts/hairpin --namespace hairpin --reset-then-reuse-values --set cleanup=true
quiet kubectl --namespace hairpin rollout status daemonset/hairpin-node
quiet helm uninstall hairpin --namespace hairpin
quiet kubectl delete namespace hairpin

say "# The first hour: a transcript"
say "This page shows the output of the commands in [install.md](../operations/install.md), [upgrade.md](../operations/upgrade.md) and [uninstall.md](../operations/uninstall.md). \`make first-hour\` wrote it from a run on three nodes with the userspace datapath. \`…\` stands for omitted lines."
say "## Install"
say "Without a network plugin no node is ready, and pods wait."
show "kubectl get nodes"
show "kubectl create namespace hairpin"
show "kubectl label namespace hairpin pod-security.kubernetes.io/enforce=privileged"
show "kubectl hairpin preflight --namespace hairpin"
show "helm install hairpin $chart --namespace hairpin $values" "$cut"
show "kubectl hairpin status --wait"
show "kubectl get nodes"
renew
say "## Test the network"
show "kubectl hairpin test" "sed '/^pod\|^host/{10,\$d}' | tail -25"
say "## Test with an application"
say "The application answers with the address that it sees."
file hello.yaml <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      containers:
      - {name: hello, image: "pod:dev", args: [serve], readinessProbe: {httpGet: {path: /, port: 8081}}}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {type: NodePort, selector: {app: hello}, ports: [{port: 80, targetPort: 8080, nodePort: 30088}]}
YAML
show "kubectl apply -f hello.yaml"
show "kubectl rollout status deployment/hello" "tail -1"
show "kubectl get pods -l app=hello -o wide" "cut -c1-110"
client=$(kubectl get pods -l app=client -o 'jsonpath={.items[0].metadata.name}')
ask="kubectl exec $client -- /bin/pod get --to hello.default.svc.cluster.local:80"
show "$ask"
show "kubectl hairpin explain pod/default/$client svc/default/hello --live"
show "kubectl hairpin explain outside svc/default/hello --via node-a --live" "head -1"
say "## Explain a failure"
say "A NetworkPolicy without rules isolates the application."
file deny.yaml <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: hello-from-nobody}
spec: {podSelector: {matchLabels: {app: hello}}}
YAML
show "kubectl apply -f deny.yaml"
show "$ask --timeout 2s" || true
show "kubectl hairpin explain pod/default/$client svc/default/hello --live"
hello=$(kubectl get pods -l app=hello -o 'jsonpath={.items[0].metadata.name}')
show "kubectl hairpin policies default/$hello"
show "kubectl delete -f deny.yaml"
say "## See an error of the configuration"
say "Errors in objects appear as Events on the object, and in \`status\`."
show "kubectl patch service hello --type merge --patch '{\"spec\":{\"externalIPs\":[\"10.96.0.1\"]}}'"
event HairpinProblem hello
show "kubectl get events --field-selector involvedObject.name=hello,reason=HairpinProblem --output custom-columns=REASON:.reason,MESSAGE:.message"
show "kubectl patch service hello --type json --patch '[{\"op\":\"remove\",\"path\":\"/spec/externalIPs\"}]'"
say "## A source address for pods"
file egress.yaml <<'YAML'
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: clients}
spec:
  egressIPs: [172.18.0.33]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  podSelector: {matchLabels: {app: client}}
YAML
show "kubectl label node node-b k8s.ovn.org/egress-assignable="
show "kubectl apply -f egress.yaml"
show "kubectl wait --for=jsonpath='{.status.items[0].node}' egressip/clients --timeout 1m"
show "kubectl get egressips"
show "kubectl hairpin explain pod/default/$client 172.18.0.100:80 --live" "head -2"
show "kubectl delete -f egress.yaml"
quiet kubectl label node node-b k8s.ovn.org/egress-assignable-
say "## Upgrade, and go back"
say "Agents are replaced node by node. Open vSwitch keeps running, because its image is the same. A client asks the application all the time:"
asked=$tools/asked
(while [ ! -e "$tools/enough" ]; do
	if $ask --timeout 5s >/dev/null 2>&1; then echo ok; else echo failed; fi >>"$asked"
done) &
show "helm show crds $chart | kubectl apply --server-side --force-conflicts --filename -"
show "helm upgrade hairpin $chart --namespace hairpin --reset-then-reuse-values --set image.tag=next" "$cut"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" "tail -1"
show "kubectl hairpin status --wait"
show "kubectl --namespace hairpin get pods -o custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[0].image"
show "helm rollback hairpin 1 --namespace hairpin"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" "tail -1"
show "kubectl hairpin status --wait"
touch "$tools/enough"
wait $!
say "The client sent $(wc -l <"$asked") requests meanwhile; $(grep -c failed "$asked" || true) failed."
show "kubectl delete -f hello.yaml"
say "## Uninstall"
say "First from the nodes, then from the cluster. The nodes then have their own addresses and devices again."
show "helm upgrade hairpin $chart --namespace hairpin --reset-then-reuse-values --set cleanup=true" "sed -n '1p; 2s/.*/…/p'"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" "tail -1"
show "helm uninstall hairpin --namespace hairpin"
show "kubectl --namespace hairpin wait --for=delete pods --all --timeout 3m" "tail -3"
show "kubectl get nodes"

quiet make install IMAGE=hairpin:dev VALUES="--set config.gateway.mode=${mode:-shared}"
renew
mv "$page" docs/start/first-hour.md
echo docs/start/first-hour.md
