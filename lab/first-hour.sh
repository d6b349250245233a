#!/bin/bash
# Writes docs/start/first-hour.md from a run of its commands on a new cluster without a network
# plugin, which it removes at the end:
#
#   lab/first-hour.sh RELEASE
#
# RELEASE is a directory that `make release` wrote with IMAGE=hairpin. After a failure the cluster
# stays for inspection; the next run replaces it.
set -euo pipefail
release=$1
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
page=$work/first-hour.md
cp "$release"/* "$work"
mkdir "$work/bin"
export KUBECONFIG=/run/hairpin-lab/cluster/kubeconfig PATH=$work/bin:$root/bin:$PATH COLUMNS=120

block= # whether the page is within a block of commands
# shellcheck disable=SC2016 # backquotes of the page
open() { [ -n "$block" ] || printf '```\n' >>"$page"; block=yes; }
# shellcheck disable=SC2016
close() { [ -z "$block" ] || printf '```\n\n' >>"$page"; block=; }
# text appends the standard input.
text() { close; { cat; echo; } >>"$page"; }
# file NAME writes a file from the standard input and shows it.
# shellcheck disable=SC2016
file() {
	close
	cat >"$work/$1"
	{ printf '```yaml\n# %s\n' "$1"; cat "$work/$1"; printf '```\n\n'; } >>"$page"
}
# run STATUS COMMAND [SED-SCRIPT] shows a command, which must end with that status, and its output
# as
# sed prints it.
run() {
	echo "first-hour: $2" >&2
	open
	local status=0
	(cd "$work" && bash -o pipefail -c "$2") >"$work/out" 2>&1 || status=$?
	{ printf '$ %s\n' "$2"; sed 's/[[:space:]]*$//; s/\x1b\[[0-9;]*m//g' "$work/out" | sed "${3-}"; } >>"$page"
	[ $status = "$1" ] || { cat "$work/out" >&2; echo "first-hour: status $status, not $1" >&2; exit 1; }
}
show() { run 0 "$@"; }
fails() { run 1 "$@"; }
# count NAME prints a number of the client's report.
count() { grep -o "\"$1\":[0-9]*" "$work/traffic.log" | cut -d: -f2; }
first='1,8!d; 8s/.*/…/' # lines of Helm

bin/lab cluster up --bare --release "$release"
bin/lab cluster import dist/hairpin-next-image.tar
kubectl apply -f lab/cluster/manifests/dns.yaml >"$work/out" # other clusters have DNS already
chart=$(cd "$release" && ls hairpin-[0-9]*.tgz)
server=$(kubectl get node node-a -o 'jsonpath={.status.addresses[0].address}')

text <<MD
# The first hour: a transcript

This page shows the output of the commands in [install.md](../operations/install.md),
[upgrade.md](../operations/upgrade.md) and [uninstall.md](../operations/uninstall.md), on three
nodes with the userspace datapath. \`make first-hour\` wrote it from a run. \`…\` stands for omitted
lines.

## Install

Without a network plugin, no node is ready and pods wait. The folder \`bin\` is in the \`PATH\`.
MD
show "tar -xzf hairpin-linux-amd64.tar.gz -C bin"
show "kubectl get nodes"
show "kubectl create namespace hairpin"
show "kubectl label namespace hairpin pod-security.kubernetes.io/enforce=privileged"
show "kubectl hairpin preflight --namespace hairpin"
show "helm install hairpin $chart --namespace hairpin --set apiServer.host=$server" "$first"
show "kubectl hairpin status --wait"
show "kubectl get nodes"
kubectl rollout status deployment/coredns --namespace kube-system >"$work/out"

text <<MD
## Test the network
MD
show "kubectl hairpin test"
show "helm test hairpin --namespace hairpin" '/^TEST SUITE/,$!d'

text <<MD
## Test with an application

The application answers with the address that it sees. Its image is the lab's.
MD
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
      - name: hello
        image: pod:dev
        args: [serve]
        readinessProbe: {httpGet: {path: /, port: 8081}}
        resources: {requests: {cpu: 250m}}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {type: NodePort, selector: {app: hello}, ports: [{port: 80, targetPort: 8080, nodePort: 30088}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  containers:
  - {name: client, image: "pod:dev", args: [serve], resources: {requests: {cpu: 250m}}}
YAML
show "kubectl apply -f hello.yaml"
show "kubectl rollout status deployment/hello" '$!d'
show "kubectl wait --for=condition=Ready pod/client --timeout 2m"
columns=NAME:.metadata.name,IP:.status.podIP,NODE:.spec.nodeName
show "kubectl get pods -o custom-columns=$columns"
ask="kubectl exec client -- /bin/pod get --to hello.default.svc.cluster.local:80"
show "$ask"
show "kubectl hairpin explain pod/client svc/hello --live"
show "kubectl hairpin explain outside svc/hello --via node-a --live" '1,2!d'

text <<MD
## Explain a failure

A NetworkPolicy without rules isolates the application.
MD
file deny.yaml <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-hello}
spec: {podSelector: {matchLabels: {app: hello}}}
YAML
show "kubectl apply -f deny.yaml"
fails "$ask --timeout 2s"
fails "kubectl hairpin explain pod/client svc/hello --live"
show "kubectl hairpin policies $(kubectl get pods -l app=hello -o 'jsonpath={.items[0].metadata.name}')"
show "kubectl delete -f deny.yaml"

text <<MD
## An error in an object

Hairpin reports it as an Event of the object, and in \`status\`.
MD
show "kubectl patch service hello --type merge --patch '{\"spec\":{\"externalIPs\":[\"10.96.0.1\"]}}'"
events="kubectl get events --field-selector involvedObject.name=hello,reason=HairpinProblem"
timeout 60 bash -c "until $events --no-headers 2>/dev/null | grep -q .; do sleep 0.2; done"
show "$events -o custom-columns=REASON:.reason,MESSAGE:.message"
fails "kubectl hairpin status"
show "kubectl patch service hello --type json --patch '[{\"op\":\"remove\",\"path\":\"/spec/externalIPs\"}]'"

text <<MD
## A fixed source address
MD
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
show "kubectl hairpin explain pod/client 172.18.0.100:80 --live" '1,2!d'
show "kubectl delete -f egress.yaml"

text <<MD
## Upgrade, and go back

Meanwhile, a client opens 20 connections per second to the application, and keeps five open. The
pods of Open vSwitch are not replaced, because their image is the same.
MD
ip=$(kubectl get service hello -o 'jsonpath={.spec.clusterIP}')
file traffic.yaml <<YAML
apiVersion: v1
kind: Pod
metadata: {name: traffic}
spec:
  restartPolicy: Never
  containers:
  - name: traffic
    image: pod:dev
    args: [stream, --to, "$ip:80", --rate, "20", --long, "5", --every, 100ms, --for, 1h]
    resources: {requests: {cpu: 250m}}
YAML
show "kubectl apply -f traffic.yaml"
show "kubectl wait --for=condition=Ready pod/traffic --timeout 2m"
kubectl logs --follow traffic >"$work/traffic.log" 2>&1 &
logs=$!
show "helm show crds $chart | kubectl apply --server-side --force-conflicts -f -"
show "helm upgrade hairpin $chart --namespace hairpin --reset-then-reuse-values --set image.tag=next" "$first"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" '$!d'
show "kubectl hairpin status --wait"
columns=NAME:.metadata.name,IMAGE:.spec.containers[0].image
show "kubectl --namespace hairpin get pods -o custom-columns=$columns"
show "helm history hairpin --namespace hairpin"
show "helm rollback hairpin 1 --namespace hairpin"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" '$!d'
show "kubectl hairpin status --wait"
kubectl delete pod traffic >"$work/out"
wait "$logs" || true # the pod is gone
text <<MD
The client opened $(count opened) connections, of which $(count failed) failed.
Of its $(count long) open connections, $(count broken) broke.

## Uninstall

First from the nodes, then from the cluster.
MD
show "kubectl delete -f hello.yaml"
show "helm upgrade hairpin $chart --namespace hairpin --reset-then-reuse-values --set cleanup=true" "$first"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" '$!d'
show "helm uninstall hairpin --namespace hairpin"
show "kubectl --namespace hairpin wait --for=delete pods --all --timeout 3m"
show "kubectl get nodes"

close
bin/lab cluster down
sed -i '$d' "$page" # the empty line at the end
mv "$page" docs/start/first-hour.md
