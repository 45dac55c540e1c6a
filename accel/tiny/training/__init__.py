"""How the bundled pipeline was made: data set, autoencoder, denoiser, export."""
