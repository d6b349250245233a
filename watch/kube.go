package watch

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"hairpin/cluster"
	"hairpin/cluster/store"
	"hairpin/kubeapi"
	"hairpin/signal"
)

// Pauses between attempts to reach the API server again. They are shorter than client-go's own (30
// to 60 s), because a node that lags behind sends packets to removed endpoints.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// otherPodsLinger is how long Pods of other nodes are still read when nothing needs them any more.
// A node from which an address moves still translates packets of their Pods for some seconds.
const otherPodsLinger = 10 * time.Second

// In a burst, there is a pause between Snapshots after the first few: the work after each costs
// about the same for one change as for ten. Snapshots without a pause: burstFree at first, and one
// more for each burstPause that passes.
const (
	burstFree  = 10
	burstPause = 100 * time.Millisecond
)

// backlog is the number of changes that can wait while a Snapshot is made, before the watches
// block.
const backlog = 256

// Kube yields the newest Snapshot of the API server's objects, until ctx ends: Nodes, Services,
// EndpointSlices, Namespaces, NetworkPolicies, ClusterNetworkPolicies, EgressIPs, EgressServices,
// LoadBalancerPools, BGPAdvertisements, ServiceCIDRs and the Pods of the named node. With an empty
// name, it reads no Pods, but FRRConfigurations. It reads Pods of other nodes while EgressIPs or
// policies need them (otherpods.go).
//
// The first Snapshot follows when all objects have been read. With an empty name, it does not wait
// for Pods: PodsUnread is set until those that are needed have been read. Later ones follow each
// change at once. In a burst, after the first few, they follow at most every burstPause, and take
// at most a quarter of the time. While the API server is down, the last one stays the newest; a
// reconnect reads missed changes, deletions included. The logger in ctx (klog.NewContext) gets one
// line when the server goes down and one when it is back.
func Kube(ctx context.Context, client *kubeapi.Client, node string,
	config cluster.Config) (<-chan *cluster.Snapshot, error) {
	if client == nil {
		return nil, errors.New("watch the Kubernetes API: no client")
	}
	k := &kube{changes: make(chan change, backlog), out: newFeed(), store: store.New(config),
		reach: reachability{log: klog.FromContext(ctx)}}
	ctx = klog.NewContext(ctx, logr.Discard()) // client-go logs every attempt of every watch
	core, all := client.Core, fields.Everything()
	sources := []*source{
		k.resource(ctx, core, "nodes", all, named[corev1.Node]),
		k.resource(ctx, core, "services", all, named[corev1.Service]),
		k.resource(ctx, client.Discovery, "endpointslices", all, named[discoveryv1.EndpointSlice]),
		k.custom(ctx, core, &egressIPs),
		k.custom(ctx, core, &egressServices),
		k.custom(ctx, core, &loadBalancerPools),
		k.custom(ctx, core, &bgpAdvertisements),
		k.serviceCIDRs(ctx, client.Networking),
	}
	namespaces := k.resource(ctx, core, "namespaces", all, named[corev1.Namespace])
	policies := k.resource(ctx, client.Networking, "networkpolicies", all, named[networkingv1.NetworkPolicy])
	clusterPolicies := k.custom(ctx, core, &clusterNetworkPolicies)
	sources = append(sources, namespaces, policies, clusterPolicies)
	if node != "" {
		own := fields.OneTermEqualSelector(fieldNodeName, node)
		pods := k.resource(ctx, core, "pods", own, named[corev1.Pod])
		sources = append(sources, pods)
		k.holdNewPods(ctx, pods, priorsOf(client, policies, clusterPolicies, namespaces)...)
	} else {
		sources = append(sources, k.custom(ctx, core, &frrConfigurations))
	}
	k.needsOtherPods = needsOtherPods(node)
	k.allowUnread = node == ""
	k.startOtherPods = func() *source { return k.resource(ctx, core, "pods", otherPods(node), named[corev1.Pod]) }
	go k.collect(ctx, len(sources))
	for _, s := range sources {
		go s.run(ctx)
	}
	return k.out, nil
}

// kubeObject is an object of the API whose metadata can be set.
type kubeObject[T any] interface {
	*T
	metav1.Object
	metav1.ObjectMetaAccessor
}

// named returns an object of a kind that has nothing but metadata.
func named[T any, P kubeObject[T]](m metav1.ObjectMeta) metav1.Object {
	o := P(new(T))
	*o.GetObjectMeta().(*metav1.ObjectMeta) = m
	return o
}

// kube is the goroutine that owns the Store, and its sources.
type kube struct {
	changes chan change
	out     feed
	store   *store.Store
	reach   reachability
	// startOtherPods starts the source of other nodes' Pods, for as long as Snapshots need it.
	// Until that source is complete there is no Snapshot, because readers must not act on part of
	// it; or, with allowUnread, Snapshots have PodsUnread.
	needsOtherPods func(*cluster.Snapshot) bool
	startOtherPods func() *source
	// allowUnread permits Snapshots with PodsUnread.
	allowUnread bool

	otherPods *source   // nil: there is none
	unneeded  time.Time // when Snapshots stopped needing it; zero: they need it
	recheck   *time.Timer
}

const fieldNodeName = "spec.nodeName"

// change is one report of a source.
type change struct {
	set, gone []any
	complete  *source // it has reported all objects
	ended     *source // it has stopped, and all its objects are gone
}

// collect reads changes and publishes Snapshots.
func (k *kube) collect(ctx context.Context, sources int) {
	synced := map[*source]bool{}
	k.recheck = time.NewTimer(otherPodsLinger)
	defer k.recheck.Stop()
	apply := func(c change) {
		for _, o := range c.gone {
			k.store.Delete(o)
		}
		for _, o := range c.set {
			k.store.Set(o)
		}
		if c.complete != nil {
			synced[c.complete] = true
		}
		if c.ended != nil {
			delete(synced, c.ended)
			k.otherPods = nil
		}
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	limiter := rate.NewLimiter(rate.Every(burstPause), burstFree)
	unread := func() bool { return k.otherPods != nil && !synced[k.otherPods] }
	var last *cluster.Snapshot // of the Store
	var out cluster.Snapshot
	var received time.Time // of the oldest change that is in no Snapshot
	for changed, pausing := false, true; ; {
		select {
		case <-ctx.Done():
			return
		case c := <-k.changes:
			if !changed {
				received = time.Now()
			}
			apply(c)
			for range len(k.changes) {
				apply(<-k.changes)
			}
			changed = true
		case <-pause.C:
			pausing = false
		case <-k.recheck.C:
			changed = changed || !k.unneeded.IsZero()
		}
		if !changed || pausing || len(synced) < sources || unread() && !k.allowUnread {
			continue
		}
		begin := time.Now()
		s := k.store.Snapshot()
		k.updateOtherPods(ctx, s, begin)
		if unread() && !k.allowUnread {
			continue
		}
		if s != last || out.PodsUnread != unread() {
			last, out = s, *s
			out.PodsUnread, out.Received = unread(), received
			k.out.put(new(out))
		}
		changed, pausing = false, true
		pause.Reset(max(3*time.Since(begin), limiter.Reserve().Delay()))
	}
}

// updateOtherPods starts the source of other nodes' Pods if the Snapshot needs it, and ends it when
// it has not been needed for otherPodsLinger.
func (k *kube) updateOtherPods(ctx context.Context, s *cluster.Snapshot, now time.Time) {
	if k.needsOtherPods != nil && k.needsOtherPods(s) {
		k.unneeded = time.Time{}
		if k.otherPods != nil {
			return
		}
		k.otherPods = k.startOtherPods()
		var until context.Context
		until, k.otherPods.end = context.WithCancel(ctx)
		go k.otherPods.runUntil(until)
		return
	}
	switch {
	case k.otherPods == nil:
	case k.unneeded.IsZero():
		k.unneeded = now
		k.recheck.Reset(otherPodsLinger)
	case now.Sub(k.unneeded) >= otherPodsLinger:
		k.otherPods.end()
	}
}

// serviceCIDRs returns the source of ServiceCIDRs. A server without the resource (before Kubernetes
// 1.33) has none.
func (k *kube) serviceCIDRs(ctx context.Context, client rest.Interface) *source {
	const resource = "servicecidrs"
	return k.source(ctx, &resourceClient{
		ListWatch: cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything()),
		resource:  resource, reach: &k.reach,
		absent: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
	}, named[networkingv1.ServiceCIDR])
}

// source feeds the changes of one reflector into kube. It keeps only the names of objects: the
// Store has parsed them, and for an object that was deleted during a gap, it needs only the name.
type source struct {
	ctx       context.Context
	changes   chan<- change
	named     func(metav1.ObjectMeta) metav1.Object
	reflector *cache.Reflector
	end       context.CancelFunc // nil: it ends with ctx
	newPods   *newPods           // nil: it passes on each object at once
	after     <-chan struct{}    // it runs when this is closed; nil: at once

	mu      sync.Mutex
	known   map[types.NamespacedName]uint64 // resourceVersions
	newest  uint64                          // the newest resourceVersion that was passed on
	changed signal.Broadcast                // notified when these change
}

// resource returns a source of some objects of a kind that the client knows.
func (k *kube) resource(ctx context.Context, client rest.Interface, resource string, which fields.Selector,
	named func(metav1.ObjectMeta) metav1.Object) *source {
	return k.source(ctx, &resourceClient{ListWatch: cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll,
		which), resource: resource, reach: &k.reach}, named)
}

func (k *kube) source(ctx context.Context, from *resourceClient, named func(metav1.ObjectMeta) metav1.Object) *source {
	s := &source{ctx: ctx, changes: k.changes, named: named, known: map[types.NamespacedName]uint64{}}
	logger := klog.FromContext(ctx)
	s.reflector = cache.NewReflectorWithOptions(from, named(metav1.ObjectMeta{}), s,
		cache.ReflectorOptions{
			Name: from.resource, Logger: &logger,
			Backoff: &wait.Backoff{
				Duration: firstRetry, Cap: lastRetry, Factor: 2, Jitter: 1, // many nodes must not retry at once
				Steps: int(math.Ceil(float64(lastRetry) / float64(firstRetry))),
			},
		})
	return s
}

func (s *source) send(c change) error {
	select {
	case s.changes <- c:
	case <-s.ctx.Done():
	}
	return nil
}

func nameOf(o any) types.NamespacedName {
	m := o.(metav1.Object) // the reflector passes no other type
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
}

// Add is called by the reflector, as are the following.
func (s *source) Add(o any) error {
	if s.newPods != nil {
		return s.newPods.set(o.(*corev1.Pod)) // the reflector passes no other type
	}
	return s.set(o)
}

// Update takes a changed object.
func (s *source) Update(o any) error { return s.Add(o) }

// Delete takes an object that is gone.
func (s *source) Delete(o any) error {
	if s.newPods != nil {
		return s.newPods.delete(o)
	}
	return s.delete(o)
}

// Replace takes all objects: at the start, and after a gap of the watch that cannot be closed
// otherwise.
func (s *source) Replace(all []any, version string) error {
	if s.newPods != nil {
		return s.newPods.replace(all, version)
	}
	return s.replace(all, version)
}

// lock locks known and newest. The returned function sets newest and unlocks them; it is called
// after the change is sent. So a change that a goroutine sends after it has read them follows, in
// the channel, the changes that they include. newest decreases only by a list, if the server's data
// were restored from a backup.
func (s *source) lock() (unlock func(version string)) {
	s.mu.Lock()
	return func(version string) {
		if v, err := parseVersion(version); err == nil {
			s.newest = v
		}
		s.mu.Unlock()
		s.changed.Notify()
	}
}

func (s *source) set(o any) error {
	version := o.(metav1.Object).GetResourceVersion()
	defer s.lock()(version)
	s.known[nameOf(o)], _ = parseVersion(version) // a version that is no number is as unknown as none
	return s.send(change{set: []any{o}})
}

func (s *source) delete(o any) error {
	defer s.lock()(o.(metav1.Object).GetResourceVersion())
	delete(s.known, nameOf(o))
	return s.send(change{gone: []any{o}})
}

func (s *source) replace(all []any, version string) error {
	defer s.lock()(version)
	before := s.known
	s.known = make(map[types.NamespacedName]uint64, len(all))
	for _, o := range all {
		s.known[nameOf(o)], _ = parseVersion(o.(metav1.Object).GetResourceVersion())
	}
	c := change{set: all, complete: s}
	for n := range before {
		if _, still := s.known[n]; !still {
			c.gone = append(c.gone, s.named(metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}))
		}
	}
	return s.send(c)
}

// run runs a source until ctx ends.
func (s *source) run(ctx context.Context) {
	if s.after != nil {
		select {
		case <-ctx.Done():
			return
		case <-s.after:
		}
	}
	s.reflector.RunWithContext(ctx)
}

// runUntil runs a source until ctx ends, and then reports all its objects as gone.
func (s *source) runUntil(ctx context.Context) {
	s.reflector.RunWithContext(ctx)
	c := change{ended: s}
	for n := range s.known {
		c.gone = append(c.gone, s.named(metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}))
	}
	_ = s.send(c)
}

// Resync does nothing.
func (s *source) Resync() error { return nil }
