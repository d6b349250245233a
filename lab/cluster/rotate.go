package cluster

import (
	"context"
	"crypto"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"hairpin/lab"
)

// Files of the control plane, below its directory. It signs with the first key or certificate of a
// file, and accepts what any of them signed.
const (
	tokenKeyFile = "pki/sa.key"
	caCertFile   = "pki/ca.crt"
	caKeyFile    = "pki/ca.key"
)

// RotateTokenKey replaces the key that signs the tokens of service accounts. The control plane
// accepts tokens of both keys until the restarted kubelets have replaced those of all pods, and
// rejects the old ones from then on.
func (c *Cluster) RotateTokenKey(ctx context.Context) error {
	old, err := c.serverFile(tokenKeyFile)
	if err != nil {
		return err
	}
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	if err := c.restartServer(ctx, map[string]string{tokenKeyFile: string(key) + old}); err != nil {
		return err
	}
	before, err := c.volumeFiles(ctx, "token")
	if err != nil {
		return err
	}
	if err := c.restartKubelets(ctx); err != nil {
		return err
	}
	err = wait(ctx, "new tokens of all pods", func() (bool, error) {
		now, err := c.volumeFiles(ctx, "token")
		return !slices.ContainsFunc(now, func(token string) bool { return slices.Contains(before, token) }), err
	})
	if err != nil {
		return err
	}
	return c.restartServer(ctx, map[string]string{tokenKeyFile: string(key)})
}

// AddCA adds a CA to those that the control plane, kubelets and pods trust. replace makes the new
// one sign, and removes the other one.
func (c *Cluster) AddCA(ctx context.Context) (replace func(context.Context) error, err error) {
	old, err := c.serverFile(caCertFile)
	if err != nil {
		return nil, err
	}
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, err
	}
	signer, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return nil, err
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "hairpin-lab-ca"}, signer.(crypto.Signer))
	if err != nil {
		return nil, err
	}
	text, err := certutil.EncodeCertificates(cert)
	if err != nil {
		return nil, err
	}
	ca := string(text)
	trust := func(ctx context.Context, files map[string]string) error {
		if err := c.restartServer(ctx, files); err != nil {
			return err
		}
		return c.distributeCAs(ctx, files[caCertFile])
	}
	return func(ctx context.Context) error {
		// A step of its own: pods need both until no server has a certificate of the old one.
		err := c.restartServer(ctx, map[string]string{caCertFile: ca + old, caKeyFile: string(key)})
		if err != nil {
			return err
		}
		return trust(ctx, map[string]string{caCertFile: ca})
	}, trust(ctx, map[string]string{caCertFile: old + ca})
}

// distributeCAs waits until the volumes of all pods have the CAs of the control plane. The kubelets
// get them from here, as from an administrator.
func (c *Cluster) distributeCAs(ctx context.Context, bundle string) error {
	err := wait(ctx, "ConfigMaps with the CAs", func() (bool, error) {
		list, err := c.Client().CoreV1().ConfigMaps("").List(ctx,
			metav1.ListOptions{FieldSelector: "metadata.name=kube-root-ca.crt"})
		if err != nil {
			return false, err
		}
		for _, m := range list.Items {
			if m.Data["ca.crt"] != bundle {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	if err := c.restartKubelets(ctx); err != nil {
		return err
	}
	return wait(ctx, "the CAs in all pods", func() (bool, error) {
		now, err := c.volumeFiles(ctx, "ca.crt")
		return !slices.ContainsFunc(now, func(ca string) bool { return ca != strings.TrimSpace(bundle) }), err
	})
}

func (c *Cluster) serverFile(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(c.lab.APIServerDir(), name))
	return string(text), err
}

// restartServer restarts the control plane with other files.
func (c *Cluster) restartServer(ctx context.Context, files map[string]string) error {
	if err := c.StopServer(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(c.lab.APIServerDir(), name), []byte(files[name]), 0o600); err != nil {
			return err
		}
	}
	return c.StartServer(ctx)
}

// restartKubelets restarts all kubelets, with the CAs of the control plane. They then replace the
// tokens and CAs of their pods.
func (c *Cluster) restartKubelets(ctx context.Context) error {
	var steps []func() error
	for _, n := range c.lab.Nodes() {
		steps = append(steps, func() error {
			if err := c.identify(n); err != nil {
				return err
			}
			return n.Restart(ctx, "kubelet", unix.SIGTERM)
		})
	}
	return lab.Together(steps...)
}

// volumeFiles returns the files of a name in the projected volumes of all pods.
func (c *Cluster) volumeFiles(ctx context.Context, name string) (list []string, err error) {
	const end = "-- end of file --"
	script := fmt.Sprintf("for f in /var/lib/kubelet/pods/*/volumes/kubernetes.io~projected/*/%s; do "+
		"[ ! -e $f ] || { cat $f; echo '%s'; }; done", name, end)
	for _, n := range c.lab.Nodes() {
		out, err := n.Exec(ctx, "sh", "-c", script)
		if err != nil {
			return nil, err
		}
		for text := range strings.SplitSeq(out, end) {
			if text = strings.TrimSpace(text); text != "" {
				list = append(list, text)
			}
		}
	}
	return list, nil
}

// Renumber replaces the addresses of a node's machine, as a DHCP server may, and restarts its
// kubelet, which reports them. It keeps the default routes.
func (c *Cluster) Renumber(ctx context.Context, name string, from, to []netip.Prefix) error {
	n := c.lab.Node(name)
	if n == nil {
		return fmt.Errorf("renumber: there is no node %s", name)
	}
	if _, err := n.Exec(ctx, "sh", "-c", renumberScript(from, to)); err != nil {
		return fmt.Errorf("renumber: %w", err)
	}
	if err := n.Kill(ctx, "kubelet", unix.SIGTERM); err != nil {
		return fmt.Errorf("renumber: %w", err)
	}
	return c.startKubelet(ctx, n, to)
}

// renumberScript returns a shell script that replaces addresses of the gateway bridge, and keeps
// the default routes.
func renumberScript(from, to []netip.Prefix) string {
	var script strings.Builder
	for i := range from {
		family, flag := "-4", ""
		if from[i].Addr().Is6() {
			family, flag = "-6", "nodad"
		}
		fmt.Fprintf(&script, "route=$(%[6]s)\nip address delete %[3]s dev %[2]s\n"+
			"ip address replace %[4]s dev %[2]s %[5]s &&\nip %[1]s route replace $route dev %[2]s || exit\n",
			family, lab.GatewayBridge, from[i], to[i], flag, lab.ShowDefaultRoute(family))
	}
	return script.String()
}
