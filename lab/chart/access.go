package chart

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Admin is an administrator's access to an API server.
type Admin struct {
	Config *rest.Config
	Client kubernetes.Interface
	any    dynamic.Interface
	mapper meta.RESTMapper
}

// NewAdmin returns the access of an administrator's configuration.
func NewAdmin(config *rest.Config) (*Admin, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	a := &Admin{Config: config, Client: client}
	if a.any, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(client.Discovery())
	if err != nil {
		return nil, fmt.Errorf("read the resources of the API server: %w", err)
	}
	a.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	return a, nil
}

// Create creates an object; with dry it is a dry run.
func (a *Admin) Create(ctx context.Context, o *unstructured.Unstructured, dry bool) error {
	kind := o.GroupVersionKind()
	m, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	opts := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		_, err = a.any.Resource(m.Resource).Namespace(o.GetNamespace()).Create(ctx, o, opts)
	} else {
		_, err = a.any.Resource(m.Resource).Create(ctx, o, opts)
	}
	return err
}

// InstallAccess creates the namespace and the chart's objects that define access rights: all but
// its pods. set are values as of --set.
func (a *Admin) InstallAccess(ctx context.Context, set ...string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	_, err := a.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	all, err := Render(ctx, set...)
	if err != nil {
		return err
	}
	for _, o := range all {
		if kind := o.GetKind(); kind == "DaemonSet" || kind == "Deployment" {
			continue
		}
		if err := a.Create(ctx, o, false); err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// As returns the credentials of a pod of one of the chart's service accounts on a node. A pod on a
// node that does not exist is deleted after a minute, and its credentials become invalid. Without a
// node the pod stays, and nothing schedules it.
func (a *Admin) As(ctx context.Context, account, node string) (*rest.Config, error) {
	pod, err := a.Client.CoreV1().Pods(Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Spec: corev1.PodSpec{
			ServiceAccountName: account, NodeName: node, SchedulerName: "none", HostNetwork: true,
			PriorityClassName: "system-node-critical",
			Containers:        []corev1.Container{{Name: "x", Image: "x"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name,
			UID: pod.UID},
	}}
	token, err := a.Client.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, account, request,
		metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	c := rest.AnonymousClientConfig(a.Config)
	c.Dial, c.BearerToken = a.Config.Dial, token.Status.Token
	return c, nil
}

// Kubeconfig returns the content of the file for a client's configuration.
func Kubeconfig(c *rest.Config) api.Config {
	return api.Config{
		Clusters: map[string]*api.Cluster{"x": {
			Server: c.Host, CertificateAuthority: c.CAFile, CertificateAuthorityData: c.CAData,
		}},
		AuthInfos: map[string]*api.AuthInfo{"x": {
			Token: c.BearerToken, ClientCertificateData: c.CertData, ClientKeyData: c.KeyData,
			ClientCertificate: c.CertFile, ClientKey: c.KeyFile,
		}},
		Contexts:       map[string]*api.Context{"x": {Cluster: "x", AuthInfo: "x"}},
		CurrentContext: "x",
	}
}
