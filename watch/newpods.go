package watch

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/kubeapi"
	"hairpin/retry"
)

// newPods holds back each new Pod of this node until the agent has the policies that are older, and
// the Pod's Namespace. Watches of two resources have no order: the Pod could arrive first, and be
// planned without a policy that was written before it.
//
// newPods lists what concerns the Pod's namespace, and waits until its sources have passed on what
// the lists have. They are requested without a resourceVersion, so a list is as new as its request.
// Pods that appear during a request share the next one. While the API server does not answer, a Pod
// waits: a CNI ADD fails until the agent knows its Pod.
//
// The first list of Pods needs no wait: the other sources start after it.
type newPods struct {
	ctx    context.Context
	priors []prior
	reach  *reachability
	out    *source
	listed chan struct{} // closed after the first list of Pods

	mu     sync.Mutex
	passed map[types.NamespacedName]types.UID
	held   map[string]map[string]*corev1.Pod // by namespace, which has a goroutine, and name
}

// listLimit limits a request for what concerns a namespace.
const listLimit = 10 * time.Second

// prior is a source whose objects a new Pod must follow.
type prior struct {
	*source
	resource string
	// list lists those objects that concern Pods of a namespace.
	list func(ctx context.Context, namespace string) (runtime.Object, error)
	// concerns reports whether list would have an object of this name.
	concerns func(object types.NamespacedName, namespace string) bool
}

// priorsOf returns the priors of new Pods: NetworkPolicies, ClusterNetworkPolicies and Namespaces,
// by the labels of which policies may select pods.
func priorsOf(client *kubeapi.Client, policies, clusterPolicies, namespaces *source) []prior {
	return []prior{
		{policies, "networkpolicies", func(ctx context.Context, namespace string) (runtime.Object, error) {
			return client.NetworkPolicies(namespace).List(ctx, metav1.ListOptions{})
		}, func(o types.NamespacedName, namespace string) bool { return o.Namespace == namespace }},
		{clusterPolicies, "clusternetworkpolicies", func(ctx context.Context, _ string) (runtime.Object, error) {
			list, err := ListClusterNetworkPolicies(ctx, client.Core, metav1.ListOptions{})
			if apierrors.IsNotFound(err) { // the server does not have the resource
				return &clusternetworkpolicy.ClusterNetworkPolicyList{ListMeta: metav1.ListMeta{ResourceVersion: "0"}},
					nil
			}
			return list, err
		}, func(types.NamespacedName, string) bool { return true }},
		{namespaces, "namespaces", func(ctx context.Context, namespace string) (runtime.Object, error) {
			return client.Namespaces().List(ctx, metav1.ListOptions{
				FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, namespace).String()})
		}, func(o types.NamespacedName, namespace string) bool { return o.Name == namespace }},
	}
}

// holdNewPods makes new Pods of this node wait for the objects of priors.
func (k *kube) holdNewPods(ctx context.Context, pods *source, priors ...prior) {
	pods.newPods = &newPods{
		ctx: ctx, priors: priors, reach: &k.reach, out: pods, listed: make(chan struct{}),
		passed: map[types.NamespacedName]types.UID{}, held: map[string]map[string]*corev1.Pod{},
	}
	for _, p := range priors {
		p.after = pods.newPods.listed
	}
}

// set passes on a Pod that is not new, and holds back a new one.
func (n *newPods) set(pod *corev1.Pod) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.passed[nameOf(pod)] == pod.UID {
		return n.out.set(pod)
	}
	n.hold(pod)
	return nil
}

func (n *newPods) hold(pod *corev1.Pod) {
	if n.held[pod.Namespace] == nil {
		n.held[pod.Namespace] = map[string]*corev1.Pod{}
		go n.release(pod.Namespace)
	}
	n.held[pod.Namespace][pod.Name] = pod
}

func (n *newPods) delete(pod any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := nameOf(pod)
	delete(n.held[name.Namespace], name.Name)
	delete(n.passed, name)
	return n.out.delete(pod)
}

// replace passes on the Pods that are not new, and holds back the others.
func (n *newPods) replace(all []any, version string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.listed:
	default:
		defer close(n.listed)
		for _, o := range all {
			n.passed[nameOf(o)] = o.(*corev1.Pod).UID
		}
	}
	for _, pods := range n.held {
		clear(pods)
	}
	before := n.passed
	n.passed = map[types.NamespacedName]types.UID{}
	var known []any
	for _, o := range all {
		pod := o.(*corev1.Pod) // the reflector passes no other type
		if before[nameOf(pod)] == pod.UID {
			n.passed[nameOf(pod)] = pod.UID
			known = append(known, pod)
		} else {
			n.hold(pod)
		}
	}
	return n.out.replace(known, version)
}

// release passes on the Pods of a namespace when the agent has its policies. It returns when it
// holds none.
func (n *newPods) release(namespace string) {
	for {
		n.mu.Lock()
		if len(n.held[namespace]) == 0 {
			delete(n.held, namespace)
			n.mu.Unlock()
			return
		}
		uids := make(map[string]types.UID, len(n.held[namespace]))
		for name, pod := range n.held[namespace] {
			uids[name] = pod.UID
		}
		n.mu.Unlock()
		if !n.wait(namespace) {
			return
		}
		n.mu.Lock()
		for name, uid := range uids {
			if pod := n.held[namespace][name]; pod != nil && pod.UID == uid {
				delete(n.held[namespace], name)
				n.passed[nameOf(pod)] = uid
				_ = n.out.set(pod) // it has no error
			}
		}
		n.mu.Unlock()
	}
}

// wait returns when the priors have passed on what a namespace has now. It returns false if ctx
// ends first.
func (n *newPods) wait(namespace string) bool {
	var all sync.WaitGroup
	for _, p := range n.priors {
		all.Go(func() { p.wait(n.ctx, namespace, n.reach) })
	}
	all.Wait()
	return n.ctx.Err() == nil
}

// wait returns when the source has passed on what a namespace has now, or when ctx ends.
func (p *prior) wait(ctx context.Context, namespace string, reach *reachability) {
	pause := retry.Backoff{Min: firstRetry, Max: lastRetry, Jitter: true}
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, listLimit)
		list, err := p.list(limited, namespace)
		cancel()
		var versions map[types.NamespacedName]uint64
		var at uint64
		if err == nil {
			versions, at, err = versionsOf(list)
		}
		reach.record(ctx, p.resource+" of a new pod", err)
		if err == nil {
			p.waitFor(ctx, namespace, versions, at)
			return
		}
		pause.Sleep(ctx)
	}
}

// versionsOf returns the resourceVersions of a list's objects and of the list. Those of one
// resource can be compared as numbers.
func versionsOf(list runtime.Object) (objects map[types.NamespacedName]uint64, whole uint64, err error) {
	objects = map[types.NamespacedName]uint64{}
	all, err := meta.ListAccessor(list)
	if err != nil {
		return nil, 0, err
	}
	if whole, err = parseVersion(all.GetResourceVersion()); err != nil {
		return nil, 0, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) (err error) {
		objects[nameOf(o)], err = parseVersion(o.(metav1.Object).GetResourceVersion())
		return err
	})
	return objects, whole, err
}

func parseVersion(text string) (uint64, error) {
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the API server's resourceVersion %q is not a number", text)
	}
	return v, nil
}

// waitFor returns when the source has passed on the objects of a namespace in these versions, or a
// state that is as new as version at, or when ctx ends.
func (p *prior) waitFor(ctx context.Context, namespace string, versions map[types.NamespacedName]uint64,
	at uint64) {
	for {
		turn := p.changed.Next()
		if p.has(namespace, versions, at) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-turn:
		}
	}
}

func (p *prior) has(namespace string, versions map[types.NamespacedName]uint64, at uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest >= at {
		return true
	}
	same := 0
	for name, version := range p.known {
		if p.concerns(name, namespace) {
			if versions[name] != version {
				return false
			}
			same++
		}
	}
	return same == len(versions)
}
