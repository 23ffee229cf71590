// A shared library without the symbol that makes it a backend.
int no_backend = 0;
