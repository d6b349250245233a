package watch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// reachability records whether the API server answers, by resource, and logs when that changes.
type reachability struct {
	log   logr.Logger
	mu    sync.Mutex
	fails map[string]bool
}

// record records the result of a call. It ignores a watch that cannot resume and a call that was
// cancelled locally: these do not show whether the server answers.
func (r *reachability) record(ctx context.Context, resource string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.fails)
	if err == nil {
		delete(r.fails, resource)
	} else {
		if r.fails == nil {
			r.fails = map[string]bool{}
		}
		r.fails[resource] = true
	}
	switch {
	case before == 0 && err != nil:
		r.log.Error(err, "Kubernetes API does not answer: keeping the last known state", "resource", resource)
	case before > 0 && len(r.fails) == 0:
		r.log.Info("Kubernetes API answers again")
	}
}

// resourceClient lists and watches one resource and records the results.
type resourceClient struct {
	*cache.ListWatch
	resource string
	reach    *reachability
	// absent, if set, returns the empty list for a resource that the server may lack.
	absent func() runtime.Object
	// watchEnds is when the server ends the last requested watch. Zero: the objects were listed
	// since.
	watchEnds time.Time
}

// ListWithContext reads one page of the objects and drops their unneeded parts.
func (a *resourceClient) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	older, err := a.serverIsOlder(ctx, options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if options.ResourceVersion == "0" || older {
		// The server's cache may be older than the state that this node had before: a restart must
		// not revert changes.
		options.ResourceVersion = ""
	}
	if options.ResourceVersion != "" && options.Limit > 0 {
		// Without it, a server lists pages of the state at exactly that version. If the version is
		// too old for a watch, the list would return the same version again.
		options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	list, err := a.ListWatch.ListWithContext(ctx, options)
	if a.absent != nil && apierrors.IsNotFound(err) {
		list, err = a.absent(), nil
	}
	a.reach.record(ctx, a.resource, err)
	if err == nil {
		a.watchEnds = time.Time{}
		err = meta.EachListItem(list, trim)
	}
	return list, err
}

// IsWatchListSemanticsUnSupported makes the reflector list before it watches. A watch that starts
// with all objects takes two to three times as long for many small objects, and no less memory than
// a paged list.
func (a *resourceClient) IsWatchListSemanticsUnSupported() bool { return true }

// WatchWithContext reads changes.
func (a *resourceClient) WatchWithContext(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	older, err := a.serverIsOlder(ctx, options.ResourceVersion)
	if older {
		err = apierrors.NewResourceExpired(a.resource + " were restored from a backup") // all are listed
	}
	if err != nil {
		return nil, err
	}
	if options.TimeoutSeconds != nil {
		a.watchEnds = time.Now().Add(time.Duration(*options.TimeoutSeconds) * time.Second)
	}
	w, err := a.ListWatch.WatchWithContext(ctx, options)
	if a.absent != nil && apierrors.IsNotFound(err) {
		if options.ResourceVersion != "" { // the server had the resource before
			return nil, apierrors.NewResourceExpired(a.resource + " are not served any more")
		}
		w, err = emptyWatch(ctx), nil
	}
	a.reach.record(ctx, a.resource, err)
	return w, err
}

// serverIsOlder reports whether the server's objects are older than a resourceVersion: its data
// were restored from a backup. The server would accept a watch from a version that it does not have
// yet, and never report what the restoration changed; a list would wait up to 40 s. serverIsOlder
// asks the server only if the last watch ended early, as it does when the server restarts. It does
// not detect restored data that have reached the version by then.
func (a *resourceClient) serverIsOlder(ctx context.Context, version string) (bool, error) {
	if !time.Now().Before(a.watchEnds) {
		return false, nil
	}
	list, err := a.ListWatch.ListWithContext(ctx, metav1.ListOptions{Limit: 1})
	if a.absent != nil && apierrors.IsNotFound(err) {
		return false, nil
	}
	a.reach.record(ctx, a.resource, err)
	if err != nil {
		return false, err
	}
	_, current, err := versionsOf(list)
	wanted, parseErr := parseVersion(version)
	return err == nil && parseErr == nil && current < wanted, nil // only numbers can be compared
}

// trim drops large parts that the Store does not read, so that they need no memory until the last
// page arrives.
func trim(o runtime.Object) error {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	switch o := o.(type) {
	case *corev1.Node:
		o.Status.Images = nil
		o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type != corev1.NodeNetworkUnavailable && c.Type != corev1.NodeReady
		})
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork,
			Containers: namedPorts(o.Spec.Containers), InitContainers: namedPorts(o.Spec.InitContainers)}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs}
	case *discoveryv1.EndpointSlice:
		for i := range o.Endpoints {
			o.Endpoints[i].TargetRef = nil
		}
	}
	return nil
}

// namedPorts returns the containers with named ports, with nothing but these.
func namedPorts(containers []corev1.Container) (list []corev1.Container) {
	for _, c := range containers {
		ports := slices.DeleteFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "" })
		if len(ports) > 0 {
			list = append(list, corev1.Container{RestartPolicy: c.RestartPolicy, Ports: ports})
		}
	}
	return list
}
