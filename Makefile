# Hairpin. `make` lists what there is.
SHELL := /bin/bash
GO ?= go
BIN := bin
LAB := $(BIN)/lab
.DEFAULT_GOAL := help
# One setting for builds and tests, so that the libraries are compiled once. Without paths of the machine in them, the same
# sources give the same programs everywhere.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath
.PHONY: help setup setup-tests build image image-lock image-oci install release vuln manifests cluster-parts cluster cluster-up e2e quick-starts e2e-upgrade first-hour conformance cluster-down demo demo-down test-kernel test-debian13 test-arm64 test test-long test-race test-race-lab check bench scale compare soak churn chaos oracle golden fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what the machine lacks (Debian packages), as root
	@lab/setup.sh

build: ## build the binaries into bin/
	@mkdir -p $(BIN)
	$(GO) build -o $(BIN)/hairpin ./cmd/hairpin
	$(GO) build -o $(LAB) ./cmd/lab

# debian13: the images with Debian 13's Open vSwitch and OVN; empty: with those of Debian's unstable.
OVS ?=
image: setup build ## make the node image (Debian 13 with Open vSwitch and OVN of unstable; OVS=debian13), cached
	@$(LAB) image --ovs "$(OVS)"

image-lock: setup build ## write image/packages.lock: the versions of the node image's packages that Debian has now (OVS=debian13: image/debian13.lock)
	@$(LAB) image --ovs "$(OVS)" --lock image/$(or $(OVS),packages).lock

# The container image's name, for which architectures it is, and where it goes.
IMAGE ?= hairpin:dev
ARCH ?= $(shell $(GO) env GOHOSTARCH)
DIST := dist

image-oci: setup build ## write the container images, an OCI archive, to dist/hairpin-image.tar, and lists of what is in them (IMAGE=hairpin:dev ARCH="amd64 arm64" OVS=debian13)
	@mkdir -p $(DIST)
	$(foreach a,$(ARCH),GOARCH=$a $(GO) build -o $(BIN)/$a/hairpin ./cmd/hairpin && $(call portmap,$a,$(BIN)/$a/portmap) &&) true
	@$(LAB) image --oci $(DIST)/hairpin-image.tar --name $(IMAGE) --ovs "$(OVS)" $(foreach a,$(ARCH),--hairpin $(BIN)/$a/hairpin --portmap $(BIN)/$a/portmap)
portmap = GOARCH=$1 $(GO) build -C image/portmap -o ../../$2 github.com/containernetworking/plugins/plugins/meta/portmap

# host and port of the API server, as nodes reach it; further values of the chart as VALUES="--set a=b".
API_SERVER ?=
manifests: $(BIN)/helm ## render dist/hairpin.yaml, for those without Helm (API_SERVER=host:port, VALUES="--set …")
	@[ -n "$(API_SERVER)" ] || { echo "say by which address nodes reach the API server: make manifests API_SERVER=host:port" >&2; exit 1; }
	@mkdir -p $(DIST)
	@image='$(IMAGE)'; server='$(API_SERVER)'; port=$${server##*:}; host=$${server%:*}; host=$${host#[}; \
	$(BIN)/helm template hairpin charts/hairpin --include-crds --skip-tests --namespace hairpin --set namespace.create=true \
	  --set image.repository="$${image%:*}" --set image.tag="$${image##*:}" $$(charts/ovs-tag.sh "$(IMAGE)") \
	  --set apiServer.host="$${host%]}" --set apiServer.port="$$port" $(VALUES) > $(DIST)/hairpin.yaml.new
	@mv $(DIST)/hairpin.yaml.new $(DIST)/hairpin.yaml
	@echo $(DIST)/hairpin.yaml

install: build $(BIN)/helm ## install or upgrade Hairpin in the cluster of KUBECONFIG, and wait until every node is well (IMAGE=…, VALUES="--set …")
	@charts/install.sh '$(IMAGE)' $(VALUES)

release: setup build $(BIN)/helm ## write a release of this commit to dist/hairpin-VERSION: programs, images, chart, manifest, lists of what is in them, checksums (VERSION=v0.2.0 IMAGE=registry.example/net/hairpin)
	@image/release.sh '$(VERSION)' '$(IMAGE:%:dev=%)'

$(BIN)/portmap: image/portmap/go.mod
	$(call portmap,,$@)

$(BIN)/kube-router: lab/kuberouter/go.mod
	@echo "building kube-router (minutes, once)"
	$(GO) build -C lab/kuberouter -ldflags "-s -w" -o ../../$@ github.com/cloudnativelabs/kube-router/v2/cmd/kube-router

$(BIN)/helm: charts/helm/go.mod
	$(GO) build -C charts/helm -o ../../$@ helm.sh/helm/v4/cmd/helm

# Gateway mode of the nodes of `make cluster` and `make demo`: shared, local or detached.
MODE ?= shared
# What serves Services on the nodes of `make cluster`: the chart's default, ovn or openflow.
cluster-values = --set config.gateway.mode=$(MODE) $(if $(ENGINE),--set config.default.service-engine=$(ENGINE))
# Whether the userspace datapath has TSO. The entry script leaves it off with Debian 13's Open vSwitch 3.5.0.
TSO ?= $(if $(filter debian13,$(OVS)),false,true)
# What a cluster is made of besides the chart and the node image, which the lab caches.
cluster-parts: image-oci $(BIN)/helm $(BIN)/coredns
	$(GO) build -ldflags "-s -w" -o $(BIN)/pod ./lab/cluster/pod

$(BIN)/coredns: lab/coredns/main.go lab/coredns/go.mod
	$(GO) build -C lab/coredns -ldflags "-s -w" -o ../../$@ .

cluster: cluster-parts ## a whole Kubernetes cluster on this machine, with Hairpin from its chart, tested with `hairpin test` (MODE=local ENGINE=ovn); leaves it up
	@$(LAB) cluster up $(cluster-values)

# The cluster that is up, or a new one. /run is empty after a reboot, as the cluster is gone then.
cluster-up: cluster-parts
	@[ -e /run/hairpin-lab/cluster/lab.json ] || $(LAB) cluster up --test=false $(cluster-values)

# Another build of the program, to upgrade to.
$(DIST)/hairpin-next-image.tar: cluster-parts $(BIN)/portmap
	$(GO) build -ldflags "-s -w" -o $(BIN)/next/hairpin ./cmd/hairpin
	@$(LAB) image --oci $@ --name hairpin:next --hairpin $(BIN)/next/hairpin --portmap $(BIN)/portmap

e2e: cluster-up $(DIST)/hairpin-next-image.tar ## test the cluster, or a new one, as a user would (E2E="-run Reach", ARGS="-api-away 30s")
	$(GO) test -tags e2e -timeout 40m -count 1 -v ./lab/e2e $(E2E) $(if $(ARGS),-args $(ARGS))

quick-starts: cluster-parts ## play the commands of the quick starts, each on a new cluster: kubeadm on two nodes, edge on one in mode detached
	$(GO) test -tags e2e -timeout 20m -count 1 -v ./lab/e2e -run '^TestQuickStart$$'

e2e-upgrade: cluster-parts ## a cluster of the release before, upgraded to a release of this commit, back, and again, under traffic; leaves it up (FROM=commit of the release before MODE=local)
	@MODE=$(MODE) lab/upgrade.sh $(FROM)

first-hour: cluster-parts $(DIST)/hairpin-next-image.tar ## write docs/start/first-hour.md from a run of its commands on a new cluster
	@version=$$(sed -n 's/^## \(v[^ ]*\).*/\1/p;T;q' CHANGELOG.md) && image/release.sh "$$version" hairpin $$($(GO) env GOHOSTARCH) && lab/first-hour.sh "$(DIST)/hairpin-$$version"

# Network tests of other projects, programs of modules of their own.
TESTS := $(BIN)/conformance
$(TESTS)/agnhost: lab/conformance/suite/go.mod $(wildcard lab/conformance/sctp/* lab/conformance/suite/probes/*)
	@mkdir -p $(TESTS)
	@echo "building the programs of the tests' images (minutes, once)"
	$(GO) build -C lab/conformance/suite -ldflags "-s -w" -o ../../../$(TESTS)/ ./probes tool
	$(GO) test -C lab/conformance/sctp -count 1 .
	$(GO) build -C lab/conformance/sctp -ldflags "-s -w" -o ../../../$@-sctp k8s.io/kubernetes/test/images/agnhost
	$(GO) build -C lab/conformance/sctp -ldflags "-s -w" -o ../../../$(TESTS)/probes-sctp hairpin/lab/conformance/suite/probes
	cp -f $$($(GO) list -C lab/conformance/suite -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter/localhost.* $(TESTS)
	@touch $@

$(TESTS)/e2e.test: $(TESTS)/agnhost lab/conformance/suite/e2e_test.go
	@echo "building Kubernetes' e2e.test (minutes, once)"
	$(GO) test -C lab/conformance/suite -c -vet=off -ldflags "-s -w" -o ../../../$@ .

$(TESTS)/policies.test: $(TESTS)/agnhost lab/conformance/policies/go.mod $(wildcard lab/conformance/policies/*.go lab/conformance/policies/*/*.go)
	$(GO) build -C lab/conformance/policies -ldflags "-s -w" -o ../../../$(TESTS)/ ./cyclonus tool
	$(GO) test -C lab/conformance/policies -c -ldflags "-s -w" -o ../../../$@ .
	cp -f $$($(GO) list -C lab/conformance/policies -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)/config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml $(TESTS)/clusternetworkpolicies.yaml
	@touch $@

# Whose tests: kubernetes, network-policy-api or cyclonus. docs/reference/conformance.md goes through them.
SUITE ?= kubernetes
# Kubernetes' specs by their whole name, cyclonus' cases by theirs. Left out by default: what needs a cloud, load balancers,
# kube-proxy or the Internet, and what takes the control plane away.
FOCUS ?= $(if $(filter kubernetes,$(SUITE)),\[sig-network\].*(\[Conformance\]|\[Feature:NetworkPolicy\]))
SKIP ?= \[Feature:(LoadBalancer|KubeProxy|PerformanceDNS|Networking-)|kube-?proxy|KubeProxy|\[Provider:|\[Disruptive\]
# Cyclonus' cases with one of these tags.
TAGS ?= ingress,egress,peer-ipblock,named-port,end-port,conflict
conformance: cluster-up $(TESTS)/$(if $(filter kubernetes,$(SUITE)),e2e,policies).test ## network tests of other projects on the cluster, or a new one (FOCUS='\[sig-network\] Services' SKIP='…'; SUITE=network-policy-api; SUITE=cyclonus TAGS=end-port,conflict; RECORD=file that keeps the results of all runs)
	@$(LAB) cluster conformance --suite '$(SUITE)' --focus '$(FOCUS)' --skip '$(SKIP)' --tags '$(TAGS)' --record '$(RECORD)'

cluster-down: build ## remove what `make cluster` left up
	@$(LAB) cluster down

# kubernetes: the demo's objects are in an API server, whose first build takes minutes; empty: the agents read manifests.
API ?=
# Trials of NetworkPolicies that take two minutes. `make test` runs them.
WITHOUT ?= ^policy (revoked|collusion|fragments|forged|spoofed)
demo: ## three nodes, every way to a Service (MODE=detached: gateway mode; ENGINE=ovn, or ovn,openflow: node by node; NODE_LOCAL=dgp ENGINE=ovn; NODEPORT_PATH=redirect; TSO=false; OVS=debian13; API=kubernetes: with an API server); leaves the lab up
	@command -v $(GO) >/dev/null || lab/setup.sh
	@$(GO) run ./cmd/prepare -ovs "$(OVS)"
	@$(LAB) demo --ovs "$(OVS)" --tso=$(TSO) --mode $(MODE) --node-local "$(NODE_LOCAL)" --nodeport-path "$(NODEPORT_PATH)" --engine "$(ENGINE)" --api "$(API)" --without "$(WITHOUT)"

test-debian13: setup build ## the demo with the Open vSwitch and OVN of Debian 13, in each gateway mode
	@for mode in shared local detached; do $(LAB) demo --lab debian13 --ovs debian13 --mode $$mode || exit 1; done
	@$(LAB) down --lab debian13

test-kernel: setup image build ## the demo's matrix and trials on Debian's kernel and the real openvswitch module, in qemu (MODE=local, ENGINE=ovn, NODE_LOCAL=dgp with that, NODEPORT_PATH=redirect, ONLY='sctp|^clash'; KERNEL=6.12: of that series): slow
	@lab/kernel.sh -t 7200 $(LAB) demo --slow 30 --mode $(MODE) --node-local "$(NODE_LOCAL)" --nodeport-path "$(NODEPORT_PATH)" --engine "$(ENGINE)" --only '$(ONLY)'

test-arm64: setup build ## boot the arm64 images in qemu: Open vSwitch, OVN and the agent serve a Service there: minutes
	@$(MAKE) --no-print-directory image-oci ARCH=arm64 DIST=$(DIST)/arm64
	@lab/arm64.sh $(DIST)/arm64/hairpin-image.tar

demo-down: build ## remove what `make demo` left up
	@$(LAB) down

setup-tests: # what only tests need
	@lab/setup.sh tests

# Packages with the longest tests, which begin first.
LONGEST = hairpin/agent hairpin/lab/demo hairpin/cni hairpin/controller
# Random tests repeat the same cases; `make test-long` and `make soak` try others. The tests wait half of the time, so more
# packages are tested at once than most machines have cores.
test: export RAPID_SEED = 1
test: setup-tests image $(BIN)/helm check ## tests of every package, on real Open vSwitch, OVN, nft, kernel and API server
	@$(LAB) kube
	$(GO) test -timeout 30m -p 3 -skip '$(shell lab/long.sh skip)' $(LONGEST) $(filter-out $(LONGEST),$(shell $(GO) list ./...))
	$(GO) test -C lab/kube ./expressions

# Which of how many parts of the long tests.
PART ?= 1/1
test-long: setup-tests image $(BIN)/helm ## what `make test` leaves out: the same in other modes, and what takes minutes; without PART also ten minutes of chaos (PART=2/6: the second of six parts)
	@$(LAB) kube
	@lab/long.sh run $(PART) | while read -r package tests; do \
		$(GO) test -timeout 60m -count 1 ./$$package -run "$$tests" || exit 1; done
	$(GO) test ./walk -run Semantics -soak 1m
	@[ '$(PART)' != 1/1 ] || $(MAKE) --no-print-directory chaos

# Packages with goroutines. Of agent and cni, the tests run a program with the race detector, see test-race-lab.
CONCURRENT = $(shell $(GO) list ./... | grep -E '^hairpin/(agent/(meter|vswitch)|apply(/(conntrack|kernel|late|nbdb|notice|ofctl|redirect))?|controller|egress/.*|hostnet|inspect|kube|ops|ovsdb|report|retry|watch)$$')
# Tests to run with the agent's race detector on.
RUN ?= Hangs|Standby|SourceIsAway|Health
RUN_CNI ?= Commands/openflow/(again|gc|killed|thirty)
test-race: setup-tests image $(BIN)/helm test-race-lab ## the packages with goroutines, with the race detector
	CGO_ENABLED=1 $(GO) test -race -timeout 20m -p 2 $(CONCURRENT)

test-race-lab: setup-tests image ## lab tests of the agent and its CNI server, built with the race detector (RUN='Hangs|Demo' RUN_CNI=Commands)
	CGO_ENABLED=1 $(GO) build -race -o $(BIN)/race/hairpin ./cmd/hairpin
	$(GO) test -timeout 30m -count 1 ./agent -run '$(RUN)' -hairpin ../$(BIN)/race/hairpin -slow 3
	$(GO) test -timeout 30m -count 1 ./cni -run '$(RUN_CNI)' -hairpin ../$(BIN)/race/hairpin

check: ## gofmt, go vet, staticcheck, go mod tidy
	@test -z "$$(gofmt -l .)" || { echo "not formatted by gofmt:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff

# Where the Go vulnerability database is; a folder as file:///….
VULNDB ?= https://vuln.go.dev
vuln: ## ask whether the program calls code with known vulnerabilities (govulncheck)
	$(GO) tool govulncheck -db $(VULNDB) ./...

# What to measure: change, create or traffic beside kube-proxy;
# policies: changes of NetworkPolicies, CNI ADD and memory; redirect: NodePorts by eBPF beside nft; dgp: a node's host by a distributed gateway port beside policies; passes: conntrack passes and
# datapath lookups of each packet (MODE=detached, ENGINE=ovn); kernel, redirect-kernel, dgp-kernel: traffic
# through the real openvswitch module, in qemu; go: the packages' own benchmarks. Empty is everything.
BENCH ?= change create traffic policies redirect dgp passes kernel redirect-kernel dgp-kernel go
bench: setup build image $(if $(filter policies,$(BENCH)),$(BIN)/kube-router) ## measure beside kube-proxy in nftables mode (BENCH=change|create|traffic|policies|allowed|redirect|dgp|passes|kernel|allowed-kernel|redirect-kernel|dgp-kernel|go, TSO=false, OVS=debian13, ENGINE=ovn, ARGS="--services 100"; ENGINE=ovn,openflow with traffic or kernel: both)
	@for part in $(filter change create traffic policies allowed redirect dgp,$(BENCH)); do $(LAB) bench --only $$part --ovs "$(OVS)" --tso=$(TSO) --engine "$(ENGINE)" $(if $(filter policies,$(BENCH)),--kube-router $(BIN)/kube-router) $(ARGS) || exit 1; done
	@[ -z "$(filter passes,$(BENCH))" ] || $(LAB) bench --only passes --mode $(MODE) --engine "$(ENGINE)"
	@[ -z "$(filter kernel,$(BENCH))" ] || { $(LAB) bench --build && lab/kernel.sh -t 7200 $(LAB) bench --only traffic --services 10 --slow 30 --engine "$(ENGINE)" $(ARGS); }
	@for part in $(patsubst %-kernel,%,$(filter allowed-kernel redirect-kernel dgp-kernel,$(BENCH))); do lab/kernel.sh -t 7200 $(LAB) bench --only $$part --slow 30 || exit 1; done
	@[ -z "$(filter go,$(BENCH))" ] || $(GO) test -timeout 30m -p 1 -run '^$$' -bench . -benchtime 1x ./...

# How large a cluster to measure, at the end.
NODES ?= 100
SERVICES ?= 100
PODS ?= 500
EGRESSIPS ?= 10
scale: setup build image ## measure what a node pays for the others, at 10, 100, … nodes of one run (NODES=1000 SERVICES=10000 PODS=100000 EGRESSIPS=1000 ENGINE=ovn ARGS="--window 1m"); the table also goes to dist/scale.json, graphs of it to dist/scale.svg
	@mkdir -p $(DIST)
	@$(LAB) scale --nodes $(NODES) --services $(SERVICES) --pods $(PODS) --egressips $(EGRESSIPS) --engine "$(ENGINE)" --json $(DIST)/scale.json --svg $(DIST)/scale.svg $(ARGS)

compare: setup image ## every case of the matrix: packets, conntrack, ovn-trace and ofproto/trace against the walk (MODE=local, NODE_LOCAL=dgp, NODEPORT_PATH=redirect, ENGINE=ovn)
	$(GO) test ./lab/demo -run 'Compare$$' -count 1 -timeout 30m -compare $(MODE) -node-local "$(NODE_LOCAL)" -nodeport-path "$(NODEPORT_PATH)" -engine "$(ENGINE)"

# Pods that send at once while no policy allows it.
ISOLATED ?= 10000
soak: ## ask random clusters whether every packet does what the semantics say, and 10 000 pods whether any is open for a moment; FOR=10m ISOLATED=10000
	$(GO) test ./walk -run Semantics -timeout 0 -soak $(or $(FOR),10m)
	$(GO) test ./agent -run 'NeverTheWrongSource|EgressIPOtherNetworks' -v -timeout 0 -egress.mode=all -egress.steps=200
	$(GO) test ./agent -run NeverOpen -v -timeout 0 -isolation.pods=$(ISOLATED)

churn: setup image ## Services change at random while clients everywhere ask for them (FOR=10m MODE=shared,local,detached ENGINE=ovn SEED=1)
	$(GO) test ./lab/churn -v -timeout 0 -count 1 -churn-for $(or $(FOR),10m) -churn-mode $(MODE) -churn-engine "$(ENGINE)" -churn-seed $(or $(SEED),0)

chaos: cluster-up $(DIST)/hairpin-next-image.tar ## inject faults at random into the cluster, or a new one, under traffic, several at once (FOR=10m SEED=1, by default the date, ARGS="--faults 'agent|partition'"); the report is in dist/chaos
	@$(LAB) chaos --for $(or $(FOR),10m) --seed $(or $(SEED),$(shell date +%Y%m%d)) $(ARGS)

oracle: ## compare what NetworkPolicies mean here with two evaluators of other projects, on random clusters (CHECKS=1000); the first build takes minutes
	$(GO) test -C lab/oracle -count 1 -v . -rapid.checks=$(or $(CHECKS),100)

golden: ## rewrite what is made of the sources: stories, docs/design/walks, docs/user/gateway-modes.md, docs/reference, the chart's values (review it like code)
	$(GO) test ./plan -run 'Stories|ModesDocument|PipelineDocument' -update
	$(GO) test ./config -run ConfigurationDocument -update
	$(GO) test ./ops -run MetricsDocument -update
	$(GO) test ./charts -run 'Values|Containers|APIDocument|Dashboard' -update
	$(GO) test ./cmd/hairpin -run 'CLIDocument|ExplainPicture' -update
	$(GO) test ./lab/demo -run Documents -update
	$(GO) test ./targets -run Document -update

fuzz: ## each fuzzer for 20 seconds
	@for f in $$(grep -rlE '^func Fuzz' --include=*_test.go .); do for n in $$(grep -oE '^func Fuzz\w+' $$f | cut -c6-); do \
	  $(GO) test ./$$(dirname $$f) -run '^$$' -fuzz "^$$n$$" -fuzztime 20s -fuzzminimizetime 1x || exit 1; done; done

clean: ## remove what was built here (caches outside the tree stay)
	rm -rf $(BIN) $(DIST)
